// Runs npm's oidc-provider on a port: tokens by client credentials, keys that rotate.
import { generateKeyPairSync } from "node:crypto";
import http from "node:http";
import { Provider } from "oidc-provider";

const issuer = `http://127.0.0.1:${process.argv[2]}`;
function provider(alg, kid, accessTokenTTL) {
  const clients = ["acme", "without-tasks"].map((client_id) => ({
    client_id,
    client_secret: client_id.repeat(9),
    id_token_signed_response_alg: alg,
    grant_types: ["client_credentials"],
    redirect_uris: [],
    response_types: [],
  }));
  const [type, options] = alg === "ES256" ? ["ec", { namedCurve: "P-256" }] : ["rsa", { modulusLength: 2048 }];
  const key = generateKeyPairSync(type, options).privateKey.export({ format: "jwk" });
  const getResourceServerInfo = (_, resource) => ({
    scope: "nunatak:predict nunatak:read nunatak:admin",
    audience: resource.replace("urn:", ""),
    accessTokenTTL,
    accessTokenFormat: "jwt",
    jwt: { sign: { alg } },
  });
  return new Provider(issuer, {
    clients,
    scopes: ["nunatak:predict", "nunatak:read", "nunatak:admin"],
    jwks: { keys: [{ ...key, kid, alg, use: "sig" }] },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: { enabled: true, getResourceServerInfo },
    },
    extraTokenClaims: (_, { clientId }) => (clientId === "acme" ? { nunatak_tasks: ["tone"] } : {}),
  }).callback();
}

let answer = provider("RS256", "first", 600);
http
  .createServer((request, response) => {
    const url = new URL(request.url, issuer);
    if (url.pathname !== "/rotate") return answer(request, response);
    const { alg, kid, ttl } = Object.fromEntries(url.searchParams);
    answer = provider(alg, kid, Number(ttl));
    response.end();
  })
  .listen(process.argv[2], "127.0.0.1", () => console.log("ready"));
