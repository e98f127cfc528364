"""The kubelet's wire contract: .proto files and the stubs generated from them (make proto)."""
