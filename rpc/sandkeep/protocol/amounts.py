"""Amounts in words for people, the same in the command line and in the daemon's progress. Pure."""


def size(count: int | None) -> str:
    """Bytes in at most six columns: ``0 B``, ``1.5 KB``, ``512 MB`` (powers of 1024)."""
    if count is None:
        return "-"
    number, unit = float(count), "B"
    for larger in ("KB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1024, larger
    return f"{number:.1f} {unit}" if unit != "B" and number < 10 else f"{number:.0f} {unit}"


def of_total(done: int, total: int | None) -> str:
    """Bytes done, of a total if that is known: ``12 MB of 40 MB, 30 %``. A total that was too small is left out."""
    if not total or done > total:
        return size(done)
    return f"{size(done)} of {size(total)}, {100 * done // total} %"
