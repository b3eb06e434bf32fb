"""The settings of the data folder and the object store."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from seaweedq.settings.group import Group


class StoreSettings(Group):
    """The settings of the data folder and the object store."""

    data_dir: Path = Field(
        Path("./seaweedq-data"),
        description="Folder of the journal, of embedded coordination and, by default, of the store.",
    )
    store: str = Field(
        "",
        description="URL of the object store that holds the messages: file:///path or s3://bucket/prefix. Empty: the "
        "folder `store` in the data folder.",
    )
    s3_endpoints: str = Field(
        "",
        pattern=r"^(\s*https?://[^\s,]+\s*,?)*$",
        description="URLs of the S3-compatible store, separated by commas; all must serve the same data. Empty: "
        "AWS_ENDPOINT_URL_S3 or the region decides. Credentials and region come from AWS's own variables and files.",
    )
    s3_addressing: Literal["auto", "path", "virtual"] = Field(
        "auto",
        description="Where requests to the store name the bucket: in the path or in the host. `auto` leaves the "
        "choice to boto.",
    )
    s3_sse: Literal["none", "AES256", "aws:kms"] = Field(
        "none",
        description="Encryption that each object is written with: Parquet, journals, payloads, those that clients put "
        "themselves, too. `none` leaves it to the bucket; AWS then encrypts with AES256 by itself. With `aws:kms` each "
        "reader of the files needs the right to use the key.",
    )
    s3_sse_kms_key: str = Field(
        "",
        pattern=r"^[!-~]*$",
        description="Id or ARN of the key for s3_sse=aws:kms. Empty: the account's own key for S3.",
    )
