"""ZeroMQ: sockets, links, keys, permissions and limits. The only package that imports zmq."""
