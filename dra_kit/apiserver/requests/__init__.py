"""What a request asks for: path, query, media types, options of subresources."""
