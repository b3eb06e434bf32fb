"""How S3 encrypts what this project writes: stated in each request that makes an object, not left to the bucket.

A part needs no statement: the beginning of its upload made it. Readers need none either; of aws:kms they need the right
to use the key.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from seaweedq.errors import InvalidRequest

NONE, KMS = "none", "aws:kms"
MAKING = frozenset({"put_object", "copy_object", "create_multipart_upload"})  # requests that make objects


@dataclass(frozen=True, slots=True)
class Encryption:
    """The kind, `none`, `AES256` or `aws:kms`, and the key's id or ARN; empty: the account's own key for S3. Raises
    InvalidRequest for a key that has no use."""

    kind: str = NONE
    kms_key: str = ""

    def __post_init__(self) -> None:
        if self.kms_key and self.kind != KMS:
            raise InvalidRequest(f"s3_sse_kms_key has no use with s3_sse={self.kind}", field="s3_sse_kms_key")

    def parameters(self, method: str) -> Mapping[str, str]:
        """Returns the parameters of boto for a request."""
        if self.kind == NONE or method not in MAKING:
            return {}
        key = {"SSEKMSKeyId": self.kms_key} if self.kms_key else {}
        return {"ServerSideEncryption": self.kind, **key}

    @property
    def headers(self) -> Mapping[str, str]:
        """Returns the headers that boto signs for those parameters: whoever holds a signed put must send them."""
        if self.kind == NONE:
            return {}
        key = {"x-amz-server-side-encryption-aws-kms-key-id": self.kms_key} if self.kms_key else {}
        return {"x-amz-server-side-encryption": self.kind, **key}
