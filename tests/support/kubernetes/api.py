"""Asks a Kubernetes API server: plain requests, and manifests of any kind, strictly read."""

import time
from typing import Any

import httpx

ACCOUNT_S = 60.0
POLL_S = 0.1
MERGE = "application/strategic-merge-patch+json"


class Kubernetes:
    """A client of one API server. It trusts any certificate: the server is on loopback and signs its own."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        headers = {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, verify=False, trust_env=False, timeout=20)
        self._plurals: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def ready(self) -> bool:
        """Whether the server says so."""
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        """One request, whatever is answered; a body of a PATCH is merged."""
        headers = {"content-type": MERGE} if method == "PATCH" else {}
        return self._http.request(method, path, json=body, headers=headers, **more)

    def get(self, path: str, **query: str) -> Any:
        """What is there. Fails where nothing is."""
        answer = self.ask("GET", path, params=query)
        assert answer.status_code == 200, f"GET {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """All items of a list."""
        found: list[dict[str, Any]] = self.get(path, **query)["items"]
        return found

    def path(self, manifest: dict[str, Any], namespace: str) -> str:
        """Where manifests of its kind are."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if (version, kind) not in self._plurals:
            kinds = self.get(root)["resources"]
            (plural,) = [one for one in kinds if one["kind"] == kind and "/" not in one["name"]]
            self._plurals[version, kind] = (plural["name"], plural["namespaced"])
        name, namespaced = self._plurals[version, kind]
        return f"{root}/namespaces/{namespace}/{name}" if namespaced else f"{root}/{name}"

    def create(self, manifest: dict[str, Any], namespace: str = "", **query: str) -> list[str]:
        """Create it, each of its fields known: the warnings. Fails where the server refuses it."""
        answer = self.ask(
            "POST", self.path(manifest, namespace), manifest, params={"fieldValidation": "Strict", **query}
        )
        assert answer.status_code == 201, f"{manifest['kind']}: {answer.status_code} {answer.text}"
        return answer.headers.get_list("warning")

    def namespace(self, name: str, level: str = "restricted") -> None:
        """Create a namespace that enforces a level of pod security and warns of templates below it; its account too."""
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        assert self.create(manifest) == []
        end = time.monotonic() + ACCOUNT_S
        while self.ask("GET", f"/api/v1/namespaces/{name}/serviceaccounts/default").status_code != 200:
            assert time.monotonic() < end, "no controller makes service accounts"
            time.sleep(POLL_S)

    def token(self, namespace: str, account: str, *audiences: str, **spec: Any) -> str:
        """A token of a service account (TokenRequest), by default for the API server, for an hour."""
        told = {"audiences": audiences, "expirationSeconds": 3600, **spec}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": told}
        answer = self.ask("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
        assert answer.status_code == 201, answer.text
        token: str = answer.json()["status"]["token"]
        return token
