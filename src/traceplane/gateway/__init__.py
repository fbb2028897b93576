"""The gateway: the public HTTP API. It accepts events and deploys even while no dispatcher runs, since both
are transactions on the same tables; a dispatcher picks the work up when it is back."""
