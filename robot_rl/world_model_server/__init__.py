"""World models in another process or on another machine: their server and its client."""
