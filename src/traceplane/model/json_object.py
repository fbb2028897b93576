"""JSON whose keys users choose: a job's config, an input's filter, a pipeline's parameters."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""Not for what the platform itself writes and reads: that has its own types."""
