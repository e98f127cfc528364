"""DeviceTaintRules by the author's policy: complete sets, kept by the active controller."""
