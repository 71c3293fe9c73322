"""Calls of the control plane for everything but sandboxes: apps, environments, secrets, images, mounts, tokens."""

import hashlib
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from grpclib import GRPCError, Status
from modal_proto import api_pb2
from tests.support.modal.access import Access
from tests.support.modal.images import Image, Images
from tests.support.modal.objects import App, Objects, Secret, new_id
from tests.support.modal.server import Call, Plane, Replies, serves

BUILDER_VERSION: Final = "2025.06"
_CREATES: Final = {
    api_pb2.OBJECT_CREATION_TYPE_CREATE_IF_MISSING,
    api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS,
    api_pb2.OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS,
}
_UNNAMED: Final = {
    api_pb2.OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP,
    api_pb2.OBJECT_CREATION_TYPE_EPHEMERAL,
}


class ControlPlane(Plane):
    """Requests of the SDK before and beside sandboxes."""

    upload_url: str = ""

    def __init__(self, objects: Objects, images: Images, access: Access) -> None:
        super().__init__()
        self.objects = objects
        self.images = images
        self.access = access

    def admit(self, call: Call, request: Any) -> None:
        """Find the workspace of the caller, which says what it is."""
        for header in ("x-modal-python-version", "x-modal-client-version", "x-modal-client-type"):
            if header not in call.metadata:
                raise GRPCError(Status.FAILED_PRECONDITION, f"Missing {header} header")
        if str(call.metadata["x-modal-client-type"]) != str(api_pb2.CLIENT_TYPE_CLIENT):
            raise GRPCError(Status.FAILED_PRECONDITION, "Unknown client type")
        call.workspace = self.access.authenticate(call.metadata)

    @serves("ClientHello")
    async def hello(self, request: Any, call: Call) -> Any:
        return api_pb2.ClientHelloResponse()

    @serves("AuthTokenGet")
    async def grant(self, request: Any, call: Call) -> Any:
        return api_pb2.AuthTokenGetResponse(token=self.access.grant(call.workspace))

    @serves("WorkspaceNameLookup")
    async def workspace(self, request: Any, call: Call) -> Any:
        return api_pb2.WorkspaceNameLookupResponse(workspace_name=call.workspace, username=call.workspace)

    # Environments and apps

    @serves("EnvironmentGetOrCreate")
    async def environment(self, request: Any, call: Call) -> Any:
        name = request.deployment_name or "main"
        if request.object_creation_type in _CREATES:
            self.objects.environments.setdefault(call.workspace, {"main"}).add(name)
        name = self.objects.environment(call.workspace, name)
        settings = api_pb2.EnvironmentSettings(image_builder_version=BUILDER_VERSION)
        metadata = api_pb2.EnvironmentMetadata(name=name, settings=settings)
        return api_pb2.EnvironmentGetOrCreateResponse(environment_id=f"en-{name}", metadata=metadata)

    @serves("EnvironmentCreate")
    async def create_environment(self, request: Any, call: Call) -> Any:
        names = self.objects.environments.setdefault(call.workspace, {"main"})
        if request.name in names:
            raise GRPCError(Status.ALREADY_EXISTS, f"Environment '{request.name}' already exists")
        names.add(request.name)
        return Empty()

    @serves("AppGetOrCreate")
    async def app(self, request: Any, call: Call) -> Any:
        environment = self.objects.environment(call.workspace, request.environment_name)
        for found in self.objects.all(App, call.workspace):
            if (found.name, found.environment) == (request.app_name, environment):
                break
        else:
            if request.object_creation_type not in _CREATES:
                raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found in environment '{environment}'")
            found = self.objects.add(
                App(id=new_id("ap"), workspace=call.workspace, name=request.app_name, environment=environment)
            )
        return api_pb2.AppGetOrCreateResponse(app_id=found.id)

    # Secrets

    @serves("SecretGetOrCreate")
    async def secret(self, request: Any, call: Call) -> Any:
        if request.object_creation_type in _UNNAMED:
            made = Secret(id=new_id("st"), workspace=call.workspace, variables=dict(request.env_dict))
            return api_pb2.SecretGetOrCreateResponse(secret_id=self.objects.add(made).id)
        environment = self.objects.environment(call.workspace, request.environment_name)
        is_new = False
        for found in self.objects.all(Secret, call.workspace):
            if (found.name, found.environment) == (request.deployment_name, environment):
                break
        else:
            if request.object_creation_type not in _CREATES:
                raise GRPCError(Status.NOT_FOUND, f"Secret '{request.deployment_name}' not found")
            is_new = True
            found = self.objects.add(
                Secret(
                    id=new_id("st"),
                    workspace=call.workspace,
                    variables={},
                    name=request.deployment_name,
                    environment=environment,
                )
            )
        if request.object_creation_type == api_pb2.OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS and not is_new:
            raise GRPCError(Status.ALREADY_EXISTS, f"Secret '{request.deployment_name}' already exists")
        if request.object_creation_type in _CREATES:
            found.variables = dict(request.env_dict) or found.variables
        missing = [key for key in request.required_keys if key not in found.variables]
        if missing:
            raise GRPCError(Status.NOT_FOUND, f"Secret is missing key(s): {', '.join(missing)}")
        return api_pb2.SecretGetOrCreateResponse(secret_id=found.id)

    @serves("SecretDelete")
    async def delete_secret(self, request: Any, call: Call) -> Any:
        self.objects.remove(self.objects.find(Secret, request.secret_id, call.workspace))
        return Empty()

    # Images

    @serves("ImageGetOrCreate")
    async def image(self, request: Any, call: Call) -> Any:
        found = self.images.get_or_build(call.workspace, request.image, force=request.force_build)
        return api_pb2.ImageGetOrCreateResponse(image_id=found.id, result=_build_result(found))

    @serves("ImageJoinStreaming")
    async def join(self, request: Any, call: Call) -> Replies:
        found = self.objects.find(Image, request.image_id, call.workspace)
        if found.build:
            await found.build
        logs = [api_pb2.TaskLogs(data=data, file_descriptor=api_pb2.FILE_DESCRIPTOR_STDOUT) for data in found.log]
        if logs and not request.last_entry_id:
            yield api_pb2.ImageJoinStreamingResponse(task_logs=logs, entry_id="1")
        yield api_pb2.ImageJoinStreamingResponse(result=_build_result(found), eof=True)

    @serves("ImageFromId")
    async def image_by_id(self, request: Any, call: Call) -> Any:
        found = self.objects.find(Image, request.image_id, call.workspace)
        return api_pb2.ImageFromIdResponse(image_id=found.id)

    @serves("ImageDelete")
    async def delete_image(self, request: Any, call: Call) -> Any:
        self.images.delete(self.objects.find(Image, request.image_id, call.workspace))
        return Empty()

    # Local files

    @serves("MountBatchedCheckExistence")
    async def missing_files(self, request: Any, call: Call) -> Any:
        missing = self.images.missing(request.sha256_hex_hashes)
        return api_pb2.MountBatchedCheckExistenceResponse(missing_sha256_hex_hashes=missing)

    @serves("MountPutFile")
    async def put_file(self, request: Any, call: Call) -> Any:
        if request.WhichOneof("data_oneof") == "data":
            self.images.put(request.sha256_hex, request.data)
        elif request.data_blob_id:
            self.images.put_upload(request.sha256_hex, request.data_blob_id)
        return api_pb2.MountPutFileResponse(exists=not self.images.missing([request.sha256_hex]))

    @serves("BlobCreate")
    async def blob(self, request: Any, call: Call) -> Any:
        blob_id = new_id("bl")
        urls = api_pb2.UploadUrlList(items=[f"{self.upload_url}/blobs/{blob_id}"])
        return api_pb2.BlobCreateResponse(blob_ids=[blob_id], upload_urls=urls)

    @serves("MountGetOrCreate")
    async def mount(self, request: Any, call: Call) -> Any:
        if request.object_creation_type not in _UNNAMED:
            raise GRPCError(Status.NOT_FOUND, f"Mount '{request.deployment_name}' not found")
        made = self.images.mount(call.workspace, request.files)
        contents = "\n".join(sorted(f"{file.filename} {file.sha256_hex}" for file in request.files))
        checksum = hashlib.sha256(contents.encode()).hexdigest()
        metadata = api_pb2.MountHandleMetadata(content_checksum_sha256_hex=checksum)
        return api_pb2.MountGetOrCreateResponse(mount_id=made.id, handle_metadata=metadata)


def _build_result(image: Image) -> Any:
    """Return the result of an image's build, which is unset while it goes on."""
    if image.build is None:
        return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
    if not image.build.done():
        return None
    error = image.build.result()
    if error is None:
        return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)
    return api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_FAILURE, exception=error)
