"""The wire contract of NRI and ttrpc: .proto files and the messages generated from them (make proto)."""
