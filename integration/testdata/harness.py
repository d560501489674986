import socket, subprocess, threading
def serve(c):
    d = b""
    while (part := c.recv(65536)): d += part
    c.sendall(subprocess.run(["sh", "-c", d], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).stdout); c.close()
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 3000)); s.listen(64)
print("up", flush=True)
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
