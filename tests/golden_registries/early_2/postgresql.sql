CREATE TABLE nunatak_retired_blobs ( digest VARCHAR(64) NOT NULL, at VARCHAR(40) NOT NULL, PRIMARY KEY (digest) );
CREATE TABLE nunatak_state ( id INTEGER NOT NULL, schema_version INTEGER NOT NULL, generation BIGINT NOT NULL, PRIMARY KEY (id), CHECK (id = 1) );
CREATE TABLE nunatak_tasks ( name VARCHAR(64) NOT NULL, next_version INTEGER NOT NULL, PRIMARY KEY (name) );
CREATE TABLE nunatak_alias_events ( id SERIAL NOT NULL, task VARCHAR(64) NOT NULL, alias VARCHAR(64) NOT NULL, kind VARCHAR(16) NOT NULL, from_version INTEGER, to_version INTEGER NOT NULL, at VARCHAR(40) NOT NULL, PRIMARY KEY (id), FOREIGN KEY(task) REFERENCES nunatak_tasks (name) );
CREATE INDEX ix_nunatak_alias_events_task ON nunatak_alias_events (task);
CREATE TABLE nunatak_versions ( task VARCHAR(64) NOT NULL, version INTEGER NOT NULL, content_digest VARCHAR(64) NOT NULL, manifest TEXT NOT NULL, manifest_digest VARCHAR(64) NOT NULL, published_at VARCHAR(40) NOT NULL, PRIMARY KEY (task, version), UNIQUE (task, content_digest), FOREIGN KEY(task) REFERENCES nunatak_tasks (name) );
CREATE TABLE nunatak_aliases ( task VARCHAR(64) NOT NULL, alias VARCHAR(64) NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (task, alias), FOREIGN KEY(task, version) REFERENCES nunatak_versions (task, version) );
CREATE TABLE nunatak_version_blobs ( task VARCHAR(64) NOT NULL, version INTEGER NOT NULL, digest VARCHAR(64) NOT NULL, PRIMARY KEY (task, version, digest), FOREIGN KEY(task, version) REFERENCES nunatak_versions (task, version) );
CREATE INDEX ix_nunatak_version_blobs_digest ON nunatak_version_blobs (digest);
