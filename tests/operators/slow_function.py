"""What an `invoke` runtime calls: its first attempt would take minutes, any other takes no time."""

import json
import sys
import time

payload = json.load(sys.stdin)
if payload["task"]["attempt"] == 1:
    time.sleep(600)
(output,) = payload["job"]["outputs"]
manifest = {name: output[name] for name in ("output_index", "dataset_uuid", "dataset_version")}
json.dump({"status": "completed", "outputs": [{**manifest, "scope": payload["task"]["scope"]}]}, sys.stdout)
