"""Kubelet's side, with Google's gRPC: peer.py FOLDER REQUEST BAD-REQUEST (hexadecimal messages).

Prints a line for each answer: the name of the call, then the message in hexadecimal digits, or the
code and the text of a refusal.
"""

import queue
import sys

import grpc

folder, request, bad = sys.argv[1], bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3])
registered = queue.Queue()


class Registration(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method != "/v1beta1.Registration/Register":
            return None

        def register(message, _context):
            registered.put(message)
            return b""

        return grpc.unary_unary_rpc_method_handler(register)


def say(name, answer):
    try:
        print(name, answer().hex(), flush=True)
    except grpc.RpcError as error:
        print(name, error.code().name, error.details(), flush=True)


from concurrent.futures import ThreadPoolExecutor

server = grpc.server(ThreadPoolExecutor(2), handlers=[Registration()])
server.add_insecure_port(f"unix:{folder}/kubelet.sock")
server.start()
message = registered.get(timeout=120)
print("Register", message.hex(), flush=True)

# Kubelet has set this since 1.26: the default, made from the path, is not a valid HTTP authority.
options = [("grpc.default_authority", "localhost")]
with grpc.insecure_channel(f"unix:{folder}/gpulimit.sock", options) as channel:
    path = "/v1beta1.DevicePlugin/"
    unary = lambda name, message: channel.unary_unary(path + name)(
        message, timeout=120, wait_for_ready=True
    )
    say("GetDevicePluginOptions", lambda: unary("GetDevicePluginOptions", b""))
    stream = channel.unary_stream(path + "ListAndWatch")(b"")
    say("ListAndWatch", lambda: next(stream))
    say("Allocate", lambda: unary("Allocate", request))
    say("Refused", lambda: unary("Allocate", bad))
    say("Unknown", lambda: unary("Nothing", b""))
    # A hundred calls on the same connection, while the stream is open.
    answers = {unary("PreStartContainer", b"") for _ in range(100)}
    print("PreStartContainer", *(answer.hex() for answer in answers), flush=True)
    stream.cancel()
server.stop(None)
