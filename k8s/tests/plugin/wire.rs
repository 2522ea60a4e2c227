//! Messages as kubelet's own definitions make them, byte by byte: written by Google's protobuf from the `api.proto` of Kubernetes 1.36.
