"""DeviceTaintRules by the author's policy: complete sets, written by the active controller."""
