"""Why a device is for a request, or is not."""
