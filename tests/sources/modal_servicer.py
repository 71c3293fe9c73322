"""Modal's own mock servicer, that of its client's tests, in a process of its own.

    python modal_servicer.py CONFTEST

writes its addresses and its token as a line of JSON, and runs until stdin ends.
"""

import asyncio
import importlib.util
import json
import sys


async def serve(conftest: str) -> None:
    spec = importlib.util.spec_from_file_location("modal_conftest", conftest)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    token = ("ak-test", "as-test")
    with module.blob_server_factory() as blobs:
        async with module.servicer_factory(blobs, token) as servicer:
            print(json.dumps({"url": servicer.client_addr, "token": {"id": token[0], "secret": token[1]}}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


asyncio.run(serve(sys.argv[1]))
