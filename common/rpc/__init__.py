"""Moving messages between processes: the codec, channels and links, who may call what, errors over the wire."""
