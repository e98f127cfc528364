"""The table of attempts: what docs/reference/tokens.md says of tokens, with requests that try it.

Each attempt names the statement that it is about by the words with which that begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from tests.support.token_reach import (
    ANOTHER,
    APPLY,
    DOTTED,
    DRIVER,
    HERE,
    LABELS,
    THERE,
    Attempt,
    Object,
    Place,
    Request,
    config_map,
    delete,
    entry_of,
    event_object,
    get,
    owned_by,
    patch,
    pod_object,
    post,
    put,
    rule_object,
    rules_path,
    secret_object,
    slice_object,
    slices_path,
    workload_object,
)

STRATEGIC: Final = "application/strategic-merge-patch+json"
PODS: Final = "/api/v1/namespaces/NAMESPACE/pods"
CONFIG_MAPS: Final = "/api/v1/namespaces/NAMESPACE/configmaps"
SECRETS: Final = "/api/v1/namespaces/NAMESPACE/secrets"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/NAMESPACE/resourceclaims"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/NAMESPACE/leases"
NODE, NOWHERE, CONTROLLER, WEBHOOK = f"node/{HERE}", "node/", "controller/", "webhook/"

TOKEN: Final[Object] = {
    "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["x"]},
}  # fmt: skip
_OF_OTHERS: Final = "only its own entries|forbidden"
_STATUS: Final = "but status.devices|cannot patch|cannot update|not permitted|forbidden"
Make = Callable[[Place], Request]


def attempts() -> Iterator[Attempt]:
    """All of them."""
    groups = {"": _node_reads(), "slice": _node_slices(), "claim": _node_claims(), "pod": _node_pods(),
              "object": _node_objects(), "controller": _controller(), "webhook": _webhook()}  # fmt: skip
    for group, found in groups.items():
        for attempt in found:
            yield replace(attempt, name="-".join(filter(None, (group, attempt.name))))


def _node_reads() -> Iterator[Attempt]:
    reads = "read every claim and every Node"
    yield Attempt(reads, "claim", NODE, get(f"{CLAIMS}/on-{THERE}"), release="plain")
    yield Attempt(reads, "node", NODE, get(f"/api/v1/nodes/{THERE}"), release="plain")
    yield Attempt(reads, "slices", NODE, get(slices_path()), release="plain")
    lists = "list claims or Nodes"
    for name, path in (
        ("claims", CLAIMS), ("nodes", "/api/v1/nodes"), ("pods", PODS), ("secrets", SECRETS),
        ("secret", f"{SECRETS}/webhook-key"), ("config-maps", CONFIG_MAPS), ("config-map", f"{CONFIG_MAPS}/own"),
    ):  # fmt: skip
        yield Attempt(lists, name, NODE, get(path), "cannot (list|get) resource", "plain")
    events = "create and change Events"
    for namespace in ("default", "kube-system"):
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        yield Attempt(events, namespace, NODE, post(path, event_object(namespace)), release="plain")
    more = "make tokens, run commands"
    account = "/api/v1/namespaces/NAMESPACE/serviceaccounts"
    rbac, admission = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
    for name, make in {
        "token": post(f"{account}/boss/token", TOKEN),
        "exec": post(f"{PODS}/own/exec?command=id", {}),
        "account": _relabelled(f"{account}/boss", {"a": "b"}),
        "role": _relabelled(f"{rbac}/clusterroles/view", {"a": "b"}),
        "policy": delete(f"{admission}/validatingadmissionpolicybindings/any"),
        "webhook": delete(f"{admission}/validatingwebhookconfigurations/any"),
        "node": patch(f"/api/v1/nodes/{HERE}", {"spec": {"unschedulable": True}}),
    }.items():
        yield Attempt(more, name, NODE, make, "cannot (create|patch|delete|get) resource", "plain")


def _scoped(name: str = "s", **given: Any) -> Make:
    version = given.get("version", "v1")
    return post(slices_path(version=version), slice_object(name, **given))


def _node_slices() -> Iterator[Attempt]:
    own = "write this driver's slices of its own node"
    yield Attempt(own, "create", NODE, _scoped())
    yield Attempt(own, "create-in-pool-below", NODE, _scoped(pool=f"{HERE}/card-0"))
    yield Attempt(own, "create-with-dots", f"node/{DOTTED}", _scoped(pool=f"{DOTTED}/a.b", nodeName=DOTTED))
    taint = {"name": "d", "taints": [{"key": "a.example/b", "effect": "NoExecute"}]}
    yield Attempt(own, "create-with-taint", NODE, _scoped(device=taint))
    yield Attempt(own, "update", NODE, put(slices_path("own"), lambda it: it["spec"]["pool"].update(generation=2)))
    yield Attempt(own, "delete", NODE, delete(slices_path("own")))
    yield Attempt(own, "delete-misnamed", NODE, delete(slices_path("misnamed")))
    any_pool = "with `node.poolNames: any`"
    yield Attempt(any_pool, "any-pool", NODE, _scoped(pool=f"{HERE}-card-0"), release="listed")
    yield Attempt(any_pool, "of-another-node", NODE, _scoped(pool=THERE), release="listed")

    others = "write slices of other nodes"
    where, whose = "may write only slices with this spec.nodeName", "may write only its own slices"
    for version in ("v1", "v1beta2", "v1beta1"):
        there = _scoped(version=version, nodeName=THERE, pool=THERE)
        yield Attempt(others, f"create-{version}", NODE, there, f"{where}, not with {THERE}")
        yield Attempt(others, f"create-foreign-{version}", NODE, _scoped(version=version, driver=ANOTHER), whose)
    yield Attempt(others, "create-own-pool-there", NODE, _scoped(nodeName=THERE), where)
    hostname = {"key": "kubernetes.io/hostname", "operator": "In", "values": [HERE]}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [hostname]}]}
    by_name = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [HERE]}]}]}
    yield Attempt(others, "create-all-nodes", NODE, _scoped(allNodes=True), where)
    yield Attempt(others, "create-node-selector", NODE, _scoped(nodeSelector=selector), where)
    yield Attempt(others, "create-own-node-by-selector", NODE, _scoped(nodeSelector=by_name), where)
    each = {"name": "d", "nodeName": THERE}
    # a server without the feature gate drops the field
    dropped = f"{where}|exactly one of `nodeName`"
    yield Attempt(others, "create-per-device", NODE, _scoped(perDeviceNodeSelection=True, device=each), dropped)
    for name, text in {"theirs": where, "foreign": whose, "cluster": where}.items():
        change = put(slices_path(name), lambda it: it["metadata"].update(labels={"a": "b"}))
        yield Attempt(others, f"update-{name}", NODE, change, text)
        yield Attempt(others, f"delete-{name}", NODE, delete(slices_path(name)), text)

    pools = "publish in pools of other nodes"
    kept = "may publish only in pools with this name"
    for pool in (THERE, f"{THERE}/card-0", DOTTED, f"{DOTTED}/a", f"{HERE}-card-0", f"{HERE}.a", "warehouse", "worker"):
        yield Attempt(pools, f"create-in-{pool}", NODE, _scoped(pool=pool), kept)
    for version in ("v1beta2", "v1beta1"):
        yield Attempt(pools, f"pool-{version}", NODE, _scoped(pool=THERE, version=version), kept)
    yield Attempt(pools, "create-with-taint", NODE, _scoped(pool=THERE, device=taint), kept)
    yield Attempt(pools, "create-from-dots", f"node/{DOTTED}", _scoped(pool=HERE, nodeName=DOTTED), kept)
    move = put(slices_path("own"), lambda it: it["spec"]["pool"].update(name=THERE))
    yield Attempt(pools, "update-to", NODE, move, f"{kept}|immutable")
    stay = put(slices_path("misnamed"), lambda it: it["spec"]["pool"].update(generation=2))
    yield Attempt(pools, "update-in", NODE, stay, kept)

    nameless = "write anything of a node"
    none = "none: its token names no node"
    yield Attempt(nameless, "of-no-node", NOWHERE, _scoped(), none)
    yield Attempt(nameless, "create-in-no-pool", NOWHERE, _scoped(allNodes=True), f"{none}|pools with this name")
    yield Attempt(nameless, "delete", NOWHERE, delete(slices_path("own")), none)
    yield Attempt(nameless, "pod", NOWHERE, post(PODS, pod_object()), none)
    yield Attempt(nameless, "config-map", NOWHERE, post(CONFIG_MAPS, config_map("x", *owned_by(HERE))), none)


def _applied(node: str, *entries: Object) -> Make:
    """Say something of the devices of a node's claim."""
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": f"on-{node}"}}
    return patch(f"{CLAIMS}/on-{node}/status", {**head, "status": {"devices": list(entries)}}, APPLY)


def _node_claims() -> Iterator[Attempt]:
    own = "change this driver's entries"
    yield Attempt(own, "apply", NODE, _applied(HERE, entry_of(HERE)), release="plain")
    others = "allocate, reserve, free"
    here, there = f"{CLAIMS}/on-{HERE}", f"{CLAIMS}/on-{THERE}"
    elsewhere = "only of claims that are allocated on this node|forbidden"
    consumer = {"resource": "pods", "name": "p", "uid": "u"}
    for name, make, text in (
        ("free", patch(f"{here}/status", {"status": {"allocation": None, "devices": None}}), _STATUS),
        ("reserve", patch(f"{here}/status", {"status": {"reservedFor": [consumer]}}), _STATUS),
        ("foreign-entry", _applied(HERE, entry_of(HERE, ANOTHER)), _OF_OTHERS),
        ("remove-foreign-entry", patch(f"{here}/status", {"status": {"devices": []}}), _OF_OTHERS),
        ("other-node", _applied(THERE, entry_of(THERE)), elsewhere),
        ("pool-of-other-node", _applied(HERE, entry_of(THERE)), "must be an allocated device"),
        ("delete", delete(here), "cannot delete resource"),
        ("update", _relabelled(there, {"a": "b"}), "cannot patch resource"),
    ):
        yield Attempt(others, name, NODE, make, text, "plain")
    tokenless = _applied(HERE, entry_of(HERE))
    yield Attempt("write anything of a node", "status", NOWHERE, tokenless, elsewhere, "plain")


def _pod(**given: Any) -> Make:
    return post(PODS, pod_object(**given))


def _relabelled(path: str, labels: Object) -> Make:
    return patch(path, {"metadata": {"labels": labels}})


def _secured(**context: object) -> Make:
    """A pod whose container has a security context."""
    return _pod(container={"securityContext": context})


def _variable(**source: Object) -> Object:
    return {"env": [{"name": "A", "valueFrom": source}]}


def _volume(**source: Any) -> Object:
    return {"volumes": [{"name": "v", **source}]}


def _projected(**source: Any) -> Object:
    return _volume(projected={"sources": [source]})


def _node_pods() -> Iterator[Attempt]:
    own = "with `node.effectPods.labels`"
    yield Attempt(own, "list", NODE, get(PODS))
    marked = {"ownerReferences": [owned_by(HERE)[0] | {"controller": True}], "annotations": {"dra-kit/effect": "{}"}}
    keys = {**LABELS, f"{DRIVER}/claim": "c", "dra-kit/driver": DRIVER, "dra-kit/node": HERE}
    yield Attempt(own, "create", NODE, _pod(metadata=marked, labels=keys))
    ordinary = {
        "priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 5, "hostname": "oven",
        "dnsPolicy": "Default", "enableServiceLinks": False, "securityContext": {"runAsUser": 7, "fsGroup": 7},
        "volumes": [
            {"name": "e", "emptyDir": {"medium": "Memory"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ],
        "initContainers": [{"name": "i", "image": "busybox:stable", "restartPolicy": "Always"}],
        "container": {
            "env": [
                *_variable(fieldRef={"fieldPath": "spec.nodeName"})["env"],
                *({"name": name, "value": "b"} for name in "BCD"),
            ],
            "command": ["sleep", "9"], "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}},
            "readinessProbe": {"httpGet": {"port": 80}}, "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
            "securityContext": {
                "runAsUser": 0, "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumeMounts": [{"name": "e", "mountPath": "/e"}],
        },
    }  # fmt: skip
    yield Attempt(own, "create-ordinary", NODE, _pod(**ordinary))
    yield Attempt(own, "create-account-default", NODE, _pod(serviceAccountName="default"))
    yield Attempt(own, "delete", NODE, delete(f"{PODS}/own"))
    yield Attempt(own, "label", NODE, _relabelled(f"{PODS}/own", {f"{DRIVER}/a": "b"}))
    image = {"spec": {"containers": [{"name": "c", "image": "busybox:1.37"}]}}
    yield Attempt(own, "image", NODE, patch(f"{PODS}/own", image, STRATEGIC))
    # annotations of others, such as a network's, are not its own
    yield Attempt(own, "label-annotated", NODE, _relabelled(f"{PODS}/annotated", {f"{DRIVER}/a": "b"}))
    yield Attempt(own, "delete-borrowed", NODE, delete(f"{PODS}/borrowed"))

    others = "write pods of other nodes"
    where, labels = "may write only pods with this spec.nodeName", "may write only pods with the labels"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "theirs"}}
    for name, make, text in (
        ("create-there", _pod(node=THERE), f"{where}, not with {THERE}"),
        ("create-nowhere", _pod(node=None), where),
        ("create-unlabelled", _pod(labels={"a": "b"}), labels),
        ("create-in-default", post("/api/v1/namespaces/default/pods", pod_object()), "cannot create resource"),
        ("delete-theirs", delete(f"{PODS}/theirs"), where),
        ("delete-stranger", delete(f"{PODS}/stranger"), labels),
        ("label-stranger", _relabelled(f"{PODS}/stranger", LABELS), labels),
        ("unlabel", _relabelled(f"{PODS}/own", {"app.kubernetes.io/component": None}), labels),
        ("label-theirs", _relabelled(f"{PODS}/theirs", {f"{DRIVER}/a": "b"}), where),
        ("evict", post(f"{PODS}/theirs/eviction", eviction), "cannot create resource"),
        ("log", get(f"{PODS}/theirs/log"), "cannot get resource"),
    ):  # fmt: skip
        yield Attempt(others, name, NODE, make, text)

    borrow = "give its pods another service account"
    account, token = "may run its pods as no service account but default", "automountServiceAccountToken: false"
    secret, config = "may not give its pods Secret webhook-key", "may not give its pods ConfigMap own"
    pull = "may not pull images"
    fields = "may not write pods with"
    projected = {"serviceAccountToken": {"path": "t"}}
    key, entry = {"name": "webhook-key", "key": "tls.key"}, {"name": "own", "key": "k"}
    second = {"name": "i", "image": "busybox:stable"}
    debug = {"spec": {"ephemeralContainers": [{"name": "e", "image": "busybox:stable"}]}}
    swap = {"spec": {"containers": [{"name": "c", "image": "evil:1"}]}}
    for name, make, text in (
        ("account", _pod(serviceAccountName="boss"), account),
        ("account-by-its-old-name", _pod(serviceAccount="boss"), account),
        ("account-of-a-role", _pod(serviceAccountName="chef"), account),
        ("token", _pod(automountServiceAccountToken=True), token),
        ("token-by-default", _pod(automountServiceAccountToken=None), token),
        ("projected-token", _pod(**_projected(**projected)), f"{fields} projected"),
        ("projected-secret", _pod(**_projected(secret={"name": "webhook-key"})), f"{fields} projected"),
        ("projected-config-map", _pod(**_projected(configMap={"name": "own"})), f"{fields} projected"),
        ("secret-volume", _pod(**_volume(secret={"secretName": "webhook-key"})), secret),
        ("secret-optional", _pod(**_volume(secret={"secretName": "webhook-key", "optional": True})), secret),
        ("secret-variable", _pod(container=_variable(secretKeyRef=key)), secret),
        ("secret-variables", _pod(container={"envFrom": [{"secretRef": {"name": "webhook-key"}}]}), secret),
        ("secret-variable-of-init", _pod(initContainers=[second | _variable(secretKeyRef=key)]), secret),
        ("config-map-volume", _pod(**_volume(configMap={"name": "own"})), config),
        ("config-map-variable", _pod(container=_variable(configMapKeyRef=entry)), config),
        ("config-map-variables", _pod(container={"envFrom": [{"configMapRef": {"name": "own"}}]}), config),
        ("config-map-of-init", _pod(initContainers=[second | _variable(configMapKeyRef=entry)]), config),
        ("pull-secret", _pod(imagePullSecrets=[{"name": "webhook-key"}]), pull),
        ("debug-container", patch(f"{PODS}/own/ephemeralcontainers", debug), fields),
        ("debug-container-of-another", patch(f"{PODS}/borrowed/ephemeralcontainers", debug), account),
        ("image-of-a-pod-with-a-token", patch(f"{PODS}/borrowed", swap, STRATEGIC), account),
    ):  # fmt: skip
        yield Attempt(borrow, name, NODE, make, text, real="debug-container" in name)
    volumes: dict[str, Object] = {
        "csi": {"csi": {"driver": "d.example", "nodePublishSecretRef": {"name": "webhook-key"}}},
        "claim": {"persistentVolumeClaim": {"claimName": "c"}},
        "ephemeral-claim": {"ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
        "flex": {"flexVolume": {"driver": "d/e", "secretRef": {"name": "webhook-key"}}},
        "rbd": {"rbd": {"monitors": ["m"], "image": "i", "secretRef": {"name": "webhook-key"}}},
        "ceph": {"cephfs": {"monitors": ["m"], "secretRef": {"name": "webhook-key"}}},
        "iscsi": {"iscsi": {"targetPortal": "192.0.2.1:3260", "iqn": "iqn.2001-04.com.example:a", "lun": 0,
                            "secretRef": {"name": "webhook-key"}}},
        "azure": {"azureFile": {"secretName": "webhook-key", "shareName": "s"}},
        "nfs": {"nfs": {"server": "192.0.2.1", "path": "/"}},
    }  # fmt: skip
    for name, source in volumes.items():
        yield Attempt(borrow, f"volume-{name}", NODE, _pod(**_volume(**source)), f"{fields} {next(iter(source))}")

    power = "give its pods paths, namespaces or ports"
    path, confined = "of the host into its pods", "only pods without privileges"
    host = "may write pods that use|may not write pods that use"
    for name, make, text in (
        ("path", _pod(**_volume(hostPath={"path": "/run/oven"})), path),
        ("pid", _pod(hostPID=True), host),
        ("ipc", _pod(hostIPC=True), host),
        ("network", _pod(hostNetwork=True), host),
        ("port", _pod(container={"ports": [{"containerPort": 80, "hostPort": 80}]}), host),
        ("probe", _pod(container={"livenessProbe": {"httpGet": {"port": 80, "host": "192.0.2.1"}}}), host),
        ("tcp-probe", _pod(container={"startupProbe": {"tcpSocket": {"port": 80, "host": "192.0.2.1"}}}), host),
        ("hook", _pod(container={"lifecycle": {"postStart": {"httpGet": {"port": 80, "host": "192.0.2.1"}}}}), host),
        ("privileged", _secured(privileged=True), confined),
        ("privileged-init", _pod(initContainers=[second | {"securityContext": {"privileged": True}}]), confined),
        ("capability", _secured(capabilities={"add": ["SYS_ADMIN"]}), confined),
        ("seccomp", _pod(securityContext={"seccompProfile": {"type": "Unconfined"}}), confined),
        ("seccomp-of-container", _secured(seccompProfile={"type": "Unconfined"}), confined),
        ("selinux", _secured(seLinuxOptions={"type": "spc_t"}), confined),
        ("sysctl", _pod(securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}), confined),
        ("apparmor", _pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}), confined),
        ("proc-mount", _pod(hostUsers=False, container={"securityContext": {"procMount": "Unmasked"}}), confined),
    ):
        yield Attempt(power, name, NODE, make, text)

    effect = "act on other pods by its own"
    added, owned = "may give its pods no label or annotation", "no owner but their node, and no finalizer"
    term = {"topologyKey": "kubernetes.io/os", "labelSelector": {}, "namespaceSelector": {}}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    for name, make, text in (
        (
            "label",
            _pod(labels={**LABELS, "app.kubernetes.io/instance": "webhook"}),
            f"{added} app.kubernetes.io/instance",
        ),
        ("label-later", _relabelled(f"{PODS}/own", {"pod-template-hash": "a"}), added),
        ("annotation", _pod(metadata={"annotations": {"k8s.v1.cni.cncf.io/networks": "admin"}}), added),
        (
            "annotation-later",
            patch(f"{PODS}/annotated", {"metadata": {"annotations": {"cni.example/address": "192.0.2.8"}}}),
            added,
        ),
        ("owner", _pod(metadata={"ownerReferences": [replica_set]}), owned),
        ("owner-node", _pod(metadata={"ownerReferences": owned_by(THERE)}), owned),
        ("owner-later", patch(f"{PODS}/own", {"metadata": {"ownerReferences": [replica_set]}}), owned),
        ("finalizer", _pod(metadata={"finalizers": ["a.example/b"]}), owned),
        ("finalizer-later", patch(f"{PODS}/own", {"metadata": {"finalizers": ["a.example/b"]}}), owned),
        ("affinity", _pod(affinity=affinity), f"{fields} affinity"),
        ("claim", _pod(resourceClaims=[{"name": "r", "resourceClaimName": f"on-{HERE}"}]), f"{fields} resourceClaims"),
        ("subdomain", _pod(subdomain="kubernetes"), f"{fields} subdomain"),
    ):
        yield Attempt(effect, name, NODE, make, text)

    listed = "with `node.effectPods.allowed`"
    service_token = [projected, {"configMap": {"name": "kube-root-ca.crt"}}, {"downwardAPI": {"items": []}}]
    for name, make in {
        "account": _pod(serviceAccountName="chef", automountServiceAccountToken=True),
        "projected-token": _pod(serviceAccountName="chef", **_volume(projected={"sources": service_token})),
        "secret": _pod(**_volume(secret={"secretName": "recipe"})),
        "secret-variable": _pod(container=_variable(secretKeyRef={"name": "recipe", "key": "k"})),
        "config-map": _pod(**_volume(configMap={"name": "listed-menu"})),
        "pull-secrets": _pod(imagePullSecrets=[{"name": "mirror"}, {"name": "registry"}]),
        "host-path": _pod(**_volume(hostPath={"path": "/run/oven"})),
        "host-path-below": _pod(**_volume(hostPath={"path": "/run/oven/a"})),
        "host-pid": _pod(hostPID=True),
        "host-network": _pod(hostNetwork=True, container={"ports": [{"containerPort": 80, "hostPort": 80}]}),
        "privileged": _secured(privileged=True, capabilities={"add": ["SYS_ADMIN"]}),
        "listed-label": _pod(labels={**LABELS, "team": "kitchen"}, metadata={"annotations": {"team": "kitchen"}}),
    }.items():
        yield Attempt(listed, name, NODE, make, release="listed")
    for name, make, text in (
        ("other-account", _pod(serviceAccountName="boss"), account),
        ("other-secret", _pod(**_volume(secret={"secretName": "webhook-key"})), secret),
        (
            "secret-beside",
            _pod(**_projected(secret={"name": "webhook-key"}), serviceAccountName="chef"),
            "may project nothing",
        ),
        ("default-token", _pod(automountServiceAccountToken=True), token),
        ("other-path", _pod(**_volume(hostPath={"path": "/run/ovens"})), path),
        ("host-ipc", _pod(hostIPC=True), host),
        ("other-config-map", _pod(**_volume(configMap={"name": "own"})), config),
        ("other-pull-secret", _pod(imagePullSecrets=[{"name": "recipe"}]), pull),
        ("other-label", _pod(labels={**LABELS, "teams": "a"}), added),
    ):
        yield Attempt(borrow, f"listed-{name}", NODE, make, text, "listed")


def _node_objects() -> Iterator[Attempt]:
    own = "with `node.extraRules`"
    label = {"a": "b"}
    yield Attempt(own, "read", NODE, get(f"{CONFIG_MAPS}/theirs"))
    yield Attempt(own, "create", NODE, post(CONFIG_MAPS, config_map("x", *owned_by(HERE))))
    yield Attempt(own, "update", NODE, _relabelled(f"{CONFIG_MAPS}/own", label))
    yield Attempt(own, "delete", NODE, delete(f"{CONFIG_MAPS}/own"))
    yield Attempt(own, "node", NODE, _relabelled(f"/api/v1/nodes/{HERE}", label))
    yield Attempt(own, "create-secret", NODE, post(SECRETS, secret_object("Opaque")))
    free = "with `node.ownObjectsOnly: false`"
    yield Attempt(free, "any-update", NODE, _relabelled(f"{CONFIG_MAPS}/theirs", label), release="listed")
    job = post("/apis/batch/v1/namespaces/NAMESPACE/jobs", workload_object("Job"))
    yield Attempt(free, "any-job", NODE, job, release="listed", real=True)

    others = "write objects of other nodes"
    text, made = "only of objects that this node owns", "nothing holds the pods of these to a node"
    no_owner: Object = {"metadata": {"ownerReferences": []}}
    shared = config_map("x", *owned_by(HERE), *owned_by(THERE, "0f0cbd0a-6f0c-4a86-8f4c-8f5f5d0c0a11"))
    token = "may write no Secret that is a token"
    for name, make, expected in (
        ("create-theirs", post(CONFIG_MAPS, config_map("x", *owned_by(THERE))), text),
        ("create-free", post(CONFIG_MAPS, config_map("x")), text),
        ("create-shared", post(CONFIG_MAPS, shared), text),
        ("secret-of-another-account", post(SECRETS, secret_object("kubernetes.io/service-account-token")), token),
        ("secret-of-a-new-node", post(SECRETS, secret_object("bootstrap.kubernetes.io/token")), token),
        ("update-theirs", _relabelled(f"{CONFIG_MAPS}/theirs", label), text),
        (
            "take-theirs",
            patch(f"{CONFIG_MAPS}/theirs", {"metadata": {"name": "theirs", "ownerReferences": owned_by(HERE)}}),
            text,
        ),
        ("update-free", _relabelled(f"{CONFIG_MAPS}/free", label), text),
        ("disown", patch(f"{CONFIG_MAPS}/own", no_owner), text),
        ("delete-theirs", delete(f"{CONFIG_MAPS}/theirs"), text),
        ("delete-free", delete(f"{CONFIG_MAPS}/free"), text),
        ("node", _relabelled(f"/api/v1/nodes/{THERE}", label), text),
        ("deployment", post("/apis/apps/v1/namespaces/NAMESPACE/deployments", workload_object("Deployment")), made),
        ("daemon-set", post("/apis/apps/v1/namespaces/NAMESPACE/daemonsets", workload_object("DaemonSet")), made),
        ("exec", post(f"{PODS}/theirs/exec?command=id", {}), text),
        ("exec-by-get", get(f"{PODS}/theirs/exec?command=id"), text),
        ("token", post("/api/v1/namespaces/NAMESPACE/serviceaccounts/boss/token", TOKEN), text),
        ("job", job, made),
    ):
        yield Attempt(others, f"{name}", NODE, make, expected, real=name in {"exec", "exec-by-get", "job"})


def _taint_rule(name: str, driver: str, owner: str = DRIVER) -> Make:
    return lambda place: Request("POST", rules_path(place), rule_object(place, name, driver, owner))


def _on_rule(method: str, name: str) -> Make:
    def make(place: Place) -> Request:
        path = rules_path(place, name)
        if method == "DELETE":
            return Request(method, path)
        return Request(method, path, place.stored[path] | {"spec": rule_object(place, name)["spec"]})

    return make


def _controller() -> Iterator[Attempt]:
    reads = "read all claims"
    yield Attempt(reads, "claims", CONTROLLER, get("/apis/resource.k8s.io/v1/resourceclaims"), release="plain")
    yield Attempt(reads, "nodes", CONTROLLER, get("/api/v1/nodes"), release="plain")
    events = "create and change Events"
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    yield Attempt(events, "event", CONTROLLER, post(path, event_object("default")), release="plain")
    yield Attempt(events, "lease", CONTROLLER, get(f"{LEASES}/{DRIVER}-controller"), release="plain")
    deletes = "delete this driver's slices"
    for name in ("own", "theirs", "cluster"):
        yield Attempt(deletes, name, CONTROLLER, delete(slices_path(name)), release="plain")
    publishes = "with `controller.clusterPools`"
    yield Attempt(publishes, "create", CONTROLLER, _scoped(pool="warehouse", allNodes=True))
    yield Attempt(publishes, "create-below", CONTROLLER, _scoped(pool="warehouse/left", allNodes=True))
    yield Attempt(
        publishes, "update", CONTROLLER, put(slices_path("cluster"), lambda it: it["spec"]["pool"].update(generation=2))
    )
    yield Attempt(publishes, "any-pool", CONTROLLER, _scoped(pool=THERE, allNodes=True), release="listed")
    says = "with `controller.binding`"
    yield Attempt(says, "get", CONTROLLER, get(f"{CLAIMS}/on-{HERE}"))
    yield Attempt(says, "apply", CONTROLLER, _applied(HERE, entry_of(HERE)))
    taints = "with `controller.taintRules`"
    yield Attempt(taints, "rule-create", CONTROLLER, _taint_rule("mine", DRIVER))
    yield Attempt(taints, "rule-update", CONTROLLER, _on_rule("PUT", "own"))
    yield Attempt(taints, "rule-delete", CONTROLLER, _on_rule("DELETE", "own"))

    slices = "create or change slices of nodes"
    of_nodes, whose = "may write only slices that belong to no node", "may write only its own slices"
    pools = "may publish only in the pools of controller.poolNames"
    change = put(slices_path("theirs"), lambda it: it["metadata"].update(labels={"a": "b"}))
    for name, make, text, release in (
        ("create", _scoped(pool="warehouse", allNodes=True), "cannot create resource", "plain"),
        ("create-of-node", _scoped(pool="warehouse"), of_nodes, "strict"),
        ("update-of-node", change, of_nodes, "strict"),
        ("create-foreign", _scoped(pool="warehouse", allNodes=True, driver=ANOTHER), whose, "strict"),
        ("delete-foreign", delete(slices_path("foreign")), whose, "plain"),
        ("pool-of-node", _scoped(pool=THERE, allNodes=True), pools, "strict"),
        ("pool-below-node", _scoped(pool=f"{THERE}/a", allNodes=True), pools, "strict"),
        ("pool-alike", _scoped(pool="warehouse-2", allNodes=True), pools, "strict"),
    ):
        yield Attempt(slices, name, CONTROLLER, make, text, release)
    claims = "allocate, reserve, free"
    here = f"{CLAIMS}/on-{HERE}"
    consumer = {"resource": "pods", "name": "p", "uid": "u"}
    for name, make, text, release in (
        ("free", patch(f"{here}/status", {"status": {"allocation": None, "devices": None}}), _STATUS, "strict"),
        ("reserve", patch(f"{here}/status", {"status": {"reservedFor": [consumer]}}), _STATUS, "strict"),
        ("foreign", _applied(HERE, entry_of(HERE, ANOTHER)), _OF_OTHERS, "strict"),
        ("say", _applied(HERE, entry_of(HERE)), "cannot patch", "plain"),
        ("update", _relabelled(here, {"a": "b"}), "cannot patch", "strict"),
        ("delete", delete(here), "cannot delete", "strict"),
    ):
        yield Attempt(claims, name, CONTROLLER, make, text, release)
    others = "taint devices of other drivers"
    yield Attempt(others, "rule-create", CONTROLLER, _taint_rule("x", ANOTHER), "may taint only its own devices")
    yield Attempt(
        others, "create-unlabelled", CONTROLLER, _taint_rule("x", DRIVER, ANOTHER), "only taint rules with the label"
    )
    yield Attempt(others, "take", CONTROLLER, _on_rule("PUT", "foreign"), "only taint rules with the label")
    yield Attempt(others, "rule-delete", CONTROLLER, _on_rule("DELETE", "foreign"), "only taint rules with the label")
    yield Attempt(others, "without", CONTROLLER, _taint_rule("x", DRIVER), "cannot create resource", "plain")
    more = "read pods, Secrets or ConfigMaps"
    for name, make in {
        "pods": get(PODS), "secrets": get(SECRETS), "secret": get(f"{SECRETS}/webhook-key"),
        "config-maps": get(CONFIG_MAPS),
        "lease": delete(f"{LEASES}/{DRIVER}-controller"),
        "other-lease": patch(f"{LEASES}/other", {"spec": {"holderIdentity": "me"}}),
        "node": delete(f"/api/v1/nodes/{THERE}"),
        "webhook": delete("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/any"),
        "policy": delete("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/any"),
    }.items():  # fmt: skip
        yield Attempt(more, name, CONTROLLER, make, "cannot (get|list|patch|delete) resource")


def _webhook() -> Iterator[Attempt]:
    none = "read claims, pods, other Secrets"
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    for name, make in {
        "claims": get(CLAIMS), "claim": get(f"{CLAIMS}/on-{HERE}"), "slices": get(slices_path()), "pods": get(PODS),
        "secrets": get(SECRETS), "secret": get(f"{SECRETS}/webhook-key"), "config-maps": get(CONFIG_MAPS),
        "slice": delete(slices_path("own")), "event": post(path, event_object("default")),
        "status": _applied(HERE),
    }.items():  # fmt: skip
        yield Attempt(none, name, WEBHOOK, make, "cannot (get|list|create|patch|delete) resource", "plain")


ATTEMPTS: Final = tuple(attempts())
