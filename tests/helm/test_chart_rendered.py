"""What the chart makes of its values, as helm renders it."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seaweedq.api.access.origins import HostRules
from seaweedq.api.metrics.cluster import WANTED
from seaweedq.cli.server import given_settings
from seaweedq.cli.server.credentials import MIN_CHARACTERS, cluster_secret
from seaweedq.errors import WrongHost
from seaweedq.settings import Settings
from tests.support.http.requests import of_scope

pytestmark = pytest.mark.process

Render = Callable[..., dict[str, Any]]


def pod(manifests: dict[str, Any]) -> dict[str, Any]:
    return manifests["Deployment"]["spec"]["template"]["spec"]


def broker(manifests: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod(manifests)["containers"]
    return container


def environment(manifests: dict[str, Any], fields: dict[str, str]) -> dict[str, str]:
    """The container's variables, as the kubelet puts them together from ConfigMap, Secret and the pod's fields."""
    made = {**manifests["ConfigMap"]["data"], **manifests.get("Secret", {}).get("stringData", {})}
    for variable in broker(manifests)["env"]:
        if "valueFrom" in variable:
            made[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            made[variable["name"]] = variable["value"].replace("$(POD_IP)", fields["status.podIP"])
    return made


FIELDS = {
    "status.podIP": "10.1.2.3",
    "metadata.name": "queue-seaweedq-5d8f7c9b6d-x2x4z",
    "metadata.labels['topology.kubernetes.io/zone']": "eu-1a",
}


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """The settings of a broker in the pod; every SEAWEEDQ_ variable must be one."""

    def loaded(manifests: dict[str, Any], **fields: str) -> Settings:
        made = environment(manifests, {**FIELDS, **fields})
        ours = {name: value for name, value in made.items() if name.startswith("SEAWEEDQ_")}
        assert {name.removeprefix("SEAWEEDQ_").lower() for name in ours} <= Settings.model_fields.keys()
        for name, value in ours.items():
            monkeypatch.setenv(name, value)
        return given_settings.settings_of(None, {})

    return loaded


def test_the_settings_of_a_small_installation(render: Render, settings_of: Callable[..., Settings]) -> None:
    settings = settings_of(render())
    assert settings.advertise_url == "http://10.1.2.3:8080"
    assert (settings.name, settings.zone) == ("queue-seaweedq-5d8f7c9b6d-x2x4z", "eu-1a")
    assert (settings.host, settings.port, settings.journal_kind) == ("0.0.0.0", 8080, "object")
    assert settings.coordination == "etcd://etcd:2379"
    assert cluster_secret(settings) == "not-a-secret-at-all"
    left = Settings.model_fields.keys() - settings.model_fields_set
    assert all(getattr(settings, name) == Settings.model_fields[name].default for name in left)


def test_brokers_call_each_other_at_a_port_that_no_client_reaches(
    render: Render, settings_of: Callable[..., Settings]
) -> None:
    manifests = render()
    settings = settings_of(manifests)
    assert (settings.peer_port, settings.advertise_peer_url) == (8443, "https://10.1.2.3:8443")
    ports = {port["name"]: port["containerPort"] for port in broker(manifests)["ports"]}
    assert ports == {"http": 8080, "peers": 8443}
    of_clients, of_brokers = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in of_clients["ports"]] == ["http"]
    assert [port["port"] for port in of_brokers["ports"]] == ["peers"]
    (brokers,) = of_brokers["from"]
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert brokers["podSelector"]["matchLabels"].items() <= labels.items()
    test = manifests["Pod"]["metadata"]["labels"]
    assert not brokers["podSelector"]["matchLabels"].items() <= test.items()
    assert [port["name"] for port in manifests["Service"]["spec"]["ports"]] == ["http"]


def test_without_a_port_for_brokers_there_is_none(render: Render) -> None:
    manifests = render(peerPort=0)
    assert not {"SEAWEEDQ_PEER_PORT", "SEAWEEDQ_ADVERTISE_PEER_URL"} & environment(manifests, FIELDS).keys()
    assert [port["name"] for port in broker(manifests)["ports"]] == ["http"]
    assert len(manifests["NetworkPolicy"]["spec"]["ingress"]) == 1


def test_grpc_has_a_port_of_the_service_if_it_is_wanted(render: Render, settings_of: Callable[..., Settings]) -> None:
    manifests = render(config={"grpc_port": 9090})
    assert settings_of(manifests).grpc_port == 9090
    assert {one["name"]: one["containerPort"] for one in broker(manifests)["ports"]}["grpc"] == 9090
    of_clients, _ = manifests["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in of_clients["ports"]] == ["http", "grpc"]
    ports = manifests["Service"]["spec"]["ports"]
    assert [(one["name"], one["port"], one["targetPort"]) for one in ports][1] == ("grpc", 9090, "grpc")


def test_the_settings_of_a_large_installation(render: Render, settings_of: Callable[..., Settings]) -> None:
    settings = settings_of(render("full"), **{"status.podIP": "fd00::3"})
    assert settings.advertise_url == "http://[fd00::3]:8080"
    assert settings.advertise_peer_url == "https://[fd00::3]:8443"
    assert settings.s3_endpoints == "http://s3-a:8333,http://s3-b:8333"
    assert settings.coordination == "etcd://etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379"
    assert settings.memory_budget_bytes == 1 << 30
    assert (settings.journal_linger_s, settings.auto_create_topics, settings.zone) == (0.05, False, "a")
    mounts = {mount["mountPath"] for mount in broker(render("full"))["volumeMounts"]}
    assert {str(Path(file).parent) for file in (settings.etcd_ca_file, settings.etcd_key_file)} <= mounts


@pytest.mark.parametrize("name", ["memory_budget_bytes", "flush_max_age_s", "journal_linger_s", "log_level"])
def test_a_setting_arrives_as_it_was_given(render: Render, settings_of: Callable[..., Settings], name: str) -> None:
    given = {"memory_budget_bytes": 68719476736, "flush_max_age_s": 1.5, "journal_linger_s": 0, "log_level": "error"}
    assert getattr(settings_of(render(config={name: given[name]})), name) == given[name]


@pytest.mark.parametrize("config", [{}, {"shutdown_s": 45}, {"shutdown_s": 59.5, "shutdown_delay_s": 6.5}])
@pytest.mark.parametrize("sleep_s", [0, 20])
def test_a_pod_has_time_to_drain(
    render: Render, settings_of: Callable[..., Settings], config: dict[str, float], sleep_s: int
) -> None:
    manifests = render(config=config, shutdown={"preStopS": sleep_s})
    hook = {"preStop": {"exec": {"command": ["sleep", str(sleep_s)]}}}
    assert broker(manifests).get("lifecycle") == (hook if sleep_s else None)
    granted = pod(manifests)["terminationGracePeriodSeconds"]
    settings = settings_of(manifests)
    assert settings.shutdown_delay_s == config.get("shutdown_delay_s", 5)
    assert granted >= sleep_s + settings.shutdown_delay_s + settings.shutdown_s + 10


def test_every_url_that_the_chart_prints_or_asks_passes(
    chart: Path, render: Render, settings_of: Callable[..., Settings]
) -> None:
    manifests = render("full")
    settings = settings_of(manifests, **{"status.podIP": "fd00::3"})
    rules = HostRules(settings.advertise_url, settings.allowed_hosts.split(","))
    name = manifests["Service"]["metadata"]["name"]
    notes = (chart / "templates" / "NOTES.txt").read_text()
    filled = {'include "seaweedq.fullname" .': name, ".Release.Namespace": "queues", ".Values.service.port": "80"}
    for template, value in filled.items():
        notes = notes.replace(f"{{{{ {template} }}}}", value)
    scheme = '{{ include "seaweedq.scheme" . }}'
    assert notes.count(scheme) == 2
    printed = re.findall(r"http://([^/\s]+)", notes.replace(scheme, "http"))
    assert set(printed) == {f"{name}.queues:80", "127.0.0.1:8080"}
    (container,) = manifests["Pod"]["spec"]["containers"]
    asked = next(one["value"] for one in container["env"] if one["name"] == "SERVICE")
    asked = asked.removeprefix("http://")
    longer = [f"{name}.queues.svc", f"{name}.queues.svc.cluster.local:80", "queue.example.com", "10.1.2.3:8080"]
    for host in (*printed, asked, *longer, "b.internal.example.com"):
        rules.check(
            of_scope({"type": "http", "method": "GET", "path": "/v1/cluster", "headers": [(b"host", host.encode())]})
        )
    with pytest.raises(WrongHost):
        rules.check(of_scope({"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"evil.example")]}))


def test_no_service_of_kubernetes_becomes_a_setting(render: Render) -> None:
    manifests = render()
    assert manifests["Service"]["metadata"]["name"] == "queue-seaweedq"
    assert pod(manifests)["enableServiceLinks"] is False


def test_services_and_policies_find_brokers_and_not_the_test(render: Render) -> None:
    manifests = render()
    template = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests["Service"]["spec"]["selector"],
        manifests["Deployment"]["spec"]["selector"]["matchLabels"],
        manifests["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ]
    own, *clients = manifests["NetworkPolicy"]["spec"]["ingress"][0]["from"]
    test = manifests["Pod"]["metadata"]["labels"]
    assert all(selector.items() <= template.items() for selector in selectors)
    assert not any(selector.items() <= test.items() for selector in selectors)
    assert own["podSelector"]["matchLabels"].items() <= (template.items() & test.items())
    assert clients == [{"podSelector": {}}]


def test_nothing_runs_as_root_or_writes_to_the_image(render: Render) -> None:
    for spec in (pod(render()), render()["Pod"]["spec"]):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_change_of_settings_or_secrets_rolls_the_pods(render: Render) -> None:
    def stamp(**values: Any) -> dict[str, str]:
        return render(**values)["Deployment"]["spec"]["template"]["metadata"]["annotations"]

    assert stamp() == stamp(service={"port": 80})
    assert stamp() != stamp(config={"flush_max_age_s": 60})
    assert stamp() != stamp(secret={"etcdPassword": "another"})
    assert stamp() != stamp(secret={"existingSecret": "another"})


def test_a_change_of_the_cluster_secret_rolls_no_pod(render: Render) -> None:
    one, other = (render(secret={"clusterSecret": f"{which}-one-of-length"}) for which in ("the", "another"))
    assert one["Secret"] != other["Secret"]
    assert one["Deployment"] == other["Deployment"]


def test_annotations_and_labels_of_ones_own_come_on_top(render: Render) -> None:
    evict = "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"
    labels = {"app.kubernetes.io/name": "mine", "team": "queues"}
    template = render(podAnnotations={evict: "data", "a": "b"}, podLabels=labels)["Deployment"]["spec"]["template"]
    local = {volume["name"] for volume in template["spec"]["volumes"] if "emptyDir" in volume}
    usual = render()["Deployment"]["spec"]["template"]["metadata"]
    assert set(usual["annotations"][evict].split(",")) == local
    assert template["metadata"]["annotations"].items() >= {evict: "data", "a": "b"}.items()
    assert template["metadata"]["labels"] == usual["labels"] | {"team": "queues"}


def test_the_count_of_brokers_is_always_said(render: Render) -> None:
    assert render()["Deployment"]["spec"]["replicas"] == 3
    scaled = render(autoscaling={"enabled": True, "minReplicas": 2})
    assert scaled["Deployment"]["spec"]["replicas"] == 2
    assert scaled["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "queue-seaweedq"


def test_autoscalers_follow_the_number_that_the_leader_recommends(render: Render) -> None:
    labels = {"release": "queue"}
    scaler = render(autoscaling={"enabled": True, "metricLabels": labels})["HorizontalPodAutoscaler"]["spec"]
    (metric,) = [one["external"] for one in scaler["metrics"]]
    assert metric["metric"] == {"name": WANTED.name, "selector": {"matchLabels": labels}}
    assert metric["target"] == {"type": "AverageValue", "averageValue": "1"}  # so many brokers as the metric says
    keda = render(autoscaling={"enabled": True, "maxReplicas": 20, "keda": {"prometheusUrl": "http://prometheus:9090"}})
    assert "HorizontalPodAutoscaler" not in keda
    spec = keda["ScaledObject"]["spec"]
    (trigger,) = spec["triggers"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"], trigger["metadata"]["threshold"]) == (3, 20, "1")
    wanted = f'max({WANTED.name}{{namespace="queues",pod=~"queue-seaweedq-.*"}} > 0)'
    assert (trigger["metadata"]["serverAddress"], trigger["metadata"]["query"]) == ("http://prometheus:9090", wanted)
    assert trigger["metadata"]["ignoreNullValues"] == "false"  # else a missing metric counts as 0
    assert spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == scaler["behavior"]


def test_the_pod_that_marks_pods_may_do_nothing_else(render: Render) -> None:
    tls, own = {"existingSecret": "queue-tls"}, {"name": "marker-token", "key": "t"}
    made = render("full", autoscaling={"enabled": True, "tokenSecret": own}, tls=tls)
    template = made["MarkerDeployment"]["spec"]["template"]
    assert not made["Service"]["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    asking = made["NetworkPolicy"]["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert asking.items() <= template["metadata"]["labels"].items()
    assert [rule["verbs"] for rule in made["MarkerRole"]["rules"]] == [["list"], ["patch"]]
    account = made["MarkerServiceAccount"]["metadata"]["name"]
    assert account == template["spec"]["serviceAccountName"] != pod(made)["serviceAccountName"]
    (container,) = template["spec"]["containers"]
    assert (template["spec"]["securityContext"], container["securityContext"]) == (
        pod(made)["securityContext"],
        broker(made)["securityContext"],
    )
    variables = {one["name"]: one.get("value") or one["valueFrom"]["secretKeyRef"] for one in container["env"]}
    assert (variables["SERVICE"], variables["TOKEN"]) == ("https://queue:8080", own)
    assert "MarkerDeployment" not in render()


def test_pods_may_run_under_ids_that_the_platform_draws(render: Render) -> None:
    manifests = render("openshift")
    for spec in (pod(manifests), manifests["Pod"]["spec"]):
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_ca_of_ones_own_reaches_the_broker(render: Render) -> None:
    manifests = render("openshift")
    variables = {variable["name"]: variable.get("value", "") for variable in broker(manifests)["env"]}
    (mounted,) = (mount for mount in broker(manifests)["volumeMounts"] if mount["name"] == "own-ca")
    assert variables["AWS_CA_BUNDLE"].startswith(mounted["mountPath"])
    assert {"name": "own-ca", "configMap": {"name": "own-ca"}} in pod(manifests)["volumes"]


def test_an_image_by_digest_has_no_tag(render: Render) -> None:
    images = {
        container["image"]
        for spec in (pod, lambda made: made["Pod"]["spec"])
        for container in spec(render("openshift"))["containers"]
    }
    assert images == {f"registry.example:5000/queue/seaweedq@sha256:{'0' * 64}"}
    assert broker(render())["image"] == "registry.example/seaweedq:0.1.0"


def test_brokers_listen_on_both_families_where_the_service_has_both(render: Render) -> None:
    manifests = render("openshift")
    assert manifests["Service"]["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    assert manifests["Service"]["spec"]["ipFamilies"] == ["IPv4"]
    assert manifests["ConfigMap"]["data"]["SEAWEEDQ_HOST"] == "::"
    assert "ipFamilyPolicy" not in render()["Service"]["spec"]


def test_metrics_are_monitored_only_when_asked_for(render: Render) -> None:
    monitor = render("monitored")["PodMonitor"]
    labels = render("monitored")["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    endpoint = {"port": "http", "path": "/metrics", "interval": "30s"}
    token = {"authorization": {"type": "Bearer", "credentials": {"name": "prometheus-token", "key": "text"}}}
    ca = {"ca": {"secret": {"name": "queue-seaweedq-tls", "key": "ca.crt"}}}
    tls = {"scheme": "https", "tlsConfig": {"serverName": "queue-seaweedq.queues.svc", **ca}}
    assert monitor["spec"]["podMetricsEndpoints"] == [{**endpoint, **token, **tls}]
    plain = render("minimal", podMonitor={"enabled": True})["PodMonitor"]
    assert plain["spec"]["podMetricsEndpoints"] == [endpoint]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert "PodMonitor" not in render()


def test_what_is_there_already_is_not_made(render: Render) -> None:
    manifests = render("existing")
    assert not manifests.keys() & {"Secret", "ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"}
    assert broker(manifests)["envFrom"][1] == {"secretRef": {"name": "queue-secrets"}}
    assert pod(manifests)["serviceAccountName"] == "default"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"config": {"flush_max_age": 60}}, "flush_max_age"),
        ({"config": {"journal": "file"}}, "journal"),
        ({"podMonitor": {"enabled": True}, "config": {"auth": "required"}}, "podMonitor.tokenSecret"),
        (
            {"podMonitor": {"enabled": True, "tokenSecret": None}, "config": {"auth": "required"}},
            "podMonitor.tokenSecret",
        ),
        ({"tls": {"certManager": {"enabled": True}}}, "tls.certManager.issuerRef"),
        ({"tls": {"existingSecret": "a", "certManager": {"enabled": True}}}, "choose one"),
        ({"config": {"tls_cert_file": "/x"}}, "tls_cert_file"),
        ({"config": {"peer_port": 8443}}, "peer_port"),
        ({"peerPort": 8080}, "peerPort"),
        ({"config": {"grpc_port": 8443}}, "grpc_port is 8443"),
        ({"replicas": 3}, "replicas"),
        ({"secret": {"clusterSecret": ""}}, "secret.clusterSecret"),
        ({"secret": {"clusterSecret": "too-short-for-it"[: MIN_CHARACTERS - 1]}}, "clusterSecret"),
        ({"etcd": {"endpoints": []}}, "etcd.endpoints"),
        ({"etcd": {"endpoints": ["http://etcd:2379"]}}, "etcd"),
        ({"etcd": {"user": "queue"}}, "etcd.tls.existingSecret"),
        ({"store": {"url": ""}}, "store.url"),
        ({"store": {"url": "file:///data"}}, "store"),
        ({"secret": {"accessKeyId": "key"}}, "secret.secretAccessKey"),
        ({"config": {"shutdown_s": "20s"}}, "shutdown_s"),
        ({"config": {"lease_s": -1}}, "lease_s"),
        ({"config": {"auth": "auto"}}, "auth"),
        ({"config": {"auth": None}}, "auth"),
        ({"image": {"repository": ""}}, "image.repository"),
        ({"image": {"repository": "registry.example/seaweedq:0.1.0"}}, "image"),
        ({"image": {"digest": "0.1.0"}}, "digest"),
        ({"dataSizeLimit": "1 GB"}, "dataSizeLimit"),
        ({"resources": {"requests": {"memory": "1536m"}}}, "memory"),
        ({"resources": {"limits": {"cpu": "two"}}}, "cpu"),
        ({"podDisruptionBudget": {"maxUnavailable": 0}}, "maxUnavailable"),
        ({"podDisruptionBudget": {"maxUnavailable": "0%"}}, "maxUnavailable"),
        ({"autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 4}}, "minReplicas"),
        ({"autoscaling": {"enabled": True}, "config": {"auth": "required"}}, "autoscaling.tokenSecret.name"),
    ],
)
def test_values_that_cannot_work_are_refused(render: Render, values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        render(**values)


def test_the_schemas_of_kubernetes_are_asked(check_helm: Any, render: Render) -> None:
    manifest = render()["Deployment"]
    assert list(check_helm.invalid(manifest, "1.35")) == []
    manifest["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpget"] = {}
    (complaint,) = check_helm.invalid(manifest, "1.35")
    assert "httpget" in complaint


def test_brokers_speak_tls_under_names_that_their_certificate_has(
    helm: str, check_helm: Any, chart: Path, settings_of: Callable[..., Settings], tmp_path: Path
) -> None:
    found = check_helm.template(helm, chart / "ci" / "monitored-values.yaml", "1.35")
    services = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "Service"}
    manifests = {one["kind"]: one for one in found if one["metadata"]["name"] != "queue-seaweedq-brokers"}
    (tmp_path / "seaweedq").write_text("#!/bin/sh\necho $SEAWEEDQ_ADVERTISE_URL $*\n")
    (tmp_path / "seaweedq").chmod(0o755)
    names = manifests["Certificate"]["spec"]["dnsNames"]
    assert {"queue-seaweedq", "queue-seaweedq.queues.svc"} < set(names)
    for ip, label in (("10.1.2.3", "10-1-2-3"), ("fd00::3", "fd00--3")):
        variables = {"POD_IP": ip, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(broker(manifests)["command"], env=variables, capture_output=True, text=True, check=True)
        domain = "queue-seaweedq-brokers.queues.svc.cluster.local"
        assert done.stdout == f"https://{label}.{domain}:8080 serve\n"
        assert f"*.{domain}" in names
        HostRules(done.stdout.split()[0], []).check(
            of_scope({"headers": [(b"host", f"{label}.{domain}:8080".encode())]})
        )
    assert services["queue-seaweedq-brokers"]["clusterIP"] == "None"
    assert services["queue-seaweedq-brokers"]["publishNotReadyAddresses"] is True
    assert "SEAWEEDQ_ADVERTISE_URL" not in {one["name"] for one in broker(manifests)["env"]}
    settings = settings_of(manifests)
    mounts = {mount["mountPath"] for mount in broker(manifests)["volumeMounts"]}
    files = (settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    assert {str(Path(file).parent) for file in files} <= mounts
    probes = [broker(manifests)[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {one["scheme"] for one in probes} == {"HTTPS"}


def test_tls_by_a_known_authority_and_tokens_from_secrets(render: Render, settings_of: Callable[..., Settings]) -> None:
    manifests = render("tls")
    settings = settings_of(manifests)
    assert settings.tls_cert_file
    assert not settings.tls_ca_file
    assert "Certificate" not in manifests
    volumes = {one["name"]: one.get("secret") for one in pod(manifests)["volumes"]}
    assert volumes["tls"]["secretName"] == "queue-tls"
    item = {"key": "token", "path": Path(settings.admin_token_file).name}
    assert (volumes["admin-token"]["secretName"], volumes["admin-token"]["items"]) == ("queue-admin-token", [item])
    (container,) = manifests["Pod"]["spec"]["containers"]
    token = next(one["valueFrom"] for one in container["env"] if one["name"] == "TOKEN")
    assert token == {"secretKeyRef": {"name": "queue-admin-token", "key": "token"}}
    full = render("full")["Pod"]["spec"]["containers"][0]["env"]
    assert {"secretKeyRef": {"name": "queue-test-token", "key": "token"}} in [one.get("valueFrom") for one in full]


def test_brokers_reach_what_they_need_and_no_more(render: Render) -> None:
    assert render()["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress"]
    policy = render("full")["NetworkPolicy"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    brokers, dns, *given = policy["egress"]
    assert brokers["to"][0] == policy["ingress"][0]["from"][0]
    assert [one["port"] for one in brokers["ports"]] == ["http", "peers"]
    assert {(one["port"], one["protocol"]) for one in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert [port["port"] for one in given for port in one["ports"]] == [2379, 8333]
