"""What a server reports about itself, with simple numbers."""

from nunatak_client import MemoryReport, ServerInfo

SERVER = ServerInfo(
    name="nunatak",
    version="0.1.0",
    backbone={},
    device="cpu",
    dtype="float32",
    registry="folder",
    limits={},
)
MEMORY = MemoryReport.model_validate(
    {
        "backbone": {
            "name": "minilm",
            "digest": "d",
            "dtype": "float32",
            "bytes": 90_000_000,
            "parameters": 22_000_000,
        },
        "tasks": [
            {
                "task": "tone",
                "version": 3,
                "method": "topk",
                "split_depth": 3,
                "bytes": 14_000_000,
                "parameters": 1,
                "pinned": False,
            }
        ],
        "shared_bytes": 104_000_000,
        "dedicated_bytes": 208_000_000,
        "saved_share": 0.5,
        "saved_share_formula": 0.5,
        "tiers": {
            "device": {
                "bytes": 14_000_000,
                "budget_bytes": 100_000_000,
                "pinned_bytes": 0,
                "loading_bytes": 0,
                "versions": 1,
            },
            "host": {"bytes": 0, "budget_bytes": 0, "blobs": 0, "hits": 0, "misses": 1},
        },
        "trunk_cache": {
            "bytes": 0,
            "max_bytes": 0,
            "states": 0,
            "hits": 0,
            "misses": 0,
            "evictions": 0,
            "saved_tokens": 0,
        },
        "activations": {"peak_bytes": None},
        "process": {
            "rss_bytes": 500_000_000,
            "peak_rss_bytes": None,
            "pss_bytes": 400_000_000,
            "uss_bytes": None,
        },
    }
)
