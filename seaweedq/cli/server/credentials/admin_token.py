"""The token of an embedded broker that may do everything: drawn once into the data folder, where its owner finds it."""

import logging

from seaweedq.access.tokens import draw
from seaweedq.cli.server.credentials.secret import draw_file
from seaweedq.clock import SystemIds
from seaweedq.settings import Settings

logger = logging.getLogger(__name__)


def draw_admin_token(settings: Settings) -> None:
    """Draws the token, with mode 0600, if none is given and none is there, and names its path. Raises OSError."""
    path = settings.admin_token_path
    if path is None or settings.admin_token_file:
        return
    if not path.exists():
        draw_file(path, draw(SystemIds()))
    logger.info("the token that may do everything is in %s; export SEAWEEDQ_TOKEN_FILE to use it", path)
