"""The subresource ``eviction`` of pods: a deletion that says in the pod's status why it is deleted.

Source: Kubernetes 1.37 ``pkg/registry/core/pod/storage/eviction.go``. No disruption budget is looked at.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from dra_kit.apiserver.answers import bad_request
from dra_kit.apiserver.api import Answer, Api, Request, created, encode, now
from dra_kit.apiserver.kinds.kind import Kind
from dra_kit.apiserver.requests.requests import WriteOptions
from dra_kit.apiserver.storage import Stored
from dra_kit.apiserver.subresources.binding import with_condition
from dra_kit.apiserver.verbs.delete import DeleteOptions, check_preconditions, delete
from dra_kit.kubernetes.values.json import Object

_REASON: Final = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}


async def evict(api: Api, kind: Kind, request: Request, stored: Stored, body: Object) -> Answer:
    """Mark a pod with the condition ``DisruptionTarget``, and delete it.

    Raises:
        Refusal: the body is no Eviction of this pod, or the pod may not be deleted.
    """
    if body.get("kind", "Eviction") != "Eviction":
        what = f'{body["kind"]} in version "{body.get("apiVersion", "")}"'
        raise bad_request(f"{what} cannot be handled as a Eviction: unknown conversion")
    if (body.get("metadata") or {}).get("name") != request.target.name:
        raise bad_request("name in URL does not match name in Eviction object")
    dry_run = WriteOptions.parse(request.query, "CreateOptions", request.agent).dry_run
    options = body.get("deleteOptions") or {}
    if dry_run:
        options = {**options, "dryRun": ["All"]}
    deletion = replace(request, method="DELETE", body=encode(options), content_type="application/json")
    parsed = DeleteOptions.parse(deletion)
    check_preconditions(parsed, stored, kind)
    if not parsed.dry_run:
        status = stored.object.get("status") or {}
        condition = {"type": "DisruptionTarget", "status": "True", "lastProbeTime": None, "lastTransitionTime": now()}
        conditions = with_condition(status.get("conditions") or [], {**condition, **_REASON})
        key = kind.key(request.target.namespace, request.target.name)
        api.storage.update(kind.resource, key, {**stored.object, "status": {**status, "conditions": conditions}})
    await delete(api, kind, deletion)
    return created()
