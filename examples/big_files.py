"""Files of any size as messages: the bytes go to the store itself, and brokers see a few hundred of them.

    python examples/big_files.py [FILE ...]

Without a file it makes one of 20 MB.
"""

import hashlib
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from seaweedq import Client

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
TOPIC = "recordings"


def sha256(path: Path) -> str:
    """Returns the digest of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def publish(client: Client, files: list[Path]) -> None:
    """Uploads files, several at a time, and publishes a message for each once its bytes are there."""
    client.create_topic(TOPIC)
    with client.producer(TOPIC) as producer:
        receipts = [producer.send_file(file, key=file.name, headers={"sha256": sha256(file)}) for file in files]
    for file, receipt in zip(files, receipts, strict=True):
        print(f"{file.name}: {file.stat().st_size:,} bytes are message {receipt.result()}")


def receive(client: Client, folder: Path) -> None:
    """Downloads what has come since the last time; a file appears once its digest was checked."""
    for message in client.subscribe(TOPIC, "archive", start="earliest", idle_timeout_s=1):
        path = folder / message.id
        message.download(path)
        whole = sha256(path) == message.headers["sha256"]
        print(f"{message.key}: {message.reference.content_type}, {'as it was' if whole else 'NOT as it was'}")
        message.ack()


def main() -> None:
    """Publishes files, and receives them as another program would."""
    with TemporaryDirectory() as folder, Client(URL) as client:
        files = [Path(name) for name in sys.argv[1:]]
        if not files:
            files = [Path(folder, "film.mp4")]
            files[0].write_bytes(os.urandom(20_000_000))
        publish(client, files)
        received = Path(folder, "received")
        received.mkdir()
        receive(client, received)


if __name__ == "__main__":
    main()
