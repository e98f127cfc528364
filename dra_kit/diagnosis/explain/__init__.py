"""Why a claim or pod gets devices, or why not. Pure."""
