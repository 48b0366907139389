"""Modules that use ONNX Runtime; no others import it.

ONNX Runtime reports what it does unless the environment says otherwise when it is first imported,
and keeps a device id and a store of events among the user's files. Models are private: it is told
not to before any module here can import it, and processes started from here inherit that. A value
that the user has set stands.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
