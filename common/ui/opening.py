"""Making the page of a process, if its configuration has one."""

from trilateral.common.process.server import LivePage, PageParts


def make_page(parts: PageParts) -> LivePage | None:
    """Return the page of a process; None if `ui.listen` is not set.

    Args:
        parts: what it is made of.
    """
    if parts.jobs.config.ui.listen is None:
        return None
    # The library takes 15 MB, and only this needs it.
    from trilateral.common.ui.page import ProcessPage

    return ProcessPage(parts)
