"""Names that are invalid for tasks and aliases, and every call with a name."""

from collections.abc import Callable

from doubles.drafts import make_draft
from nunatak_contract.names import TaskReference
from nunatak_registry import Registry

HOSTILE_NAMES: tuple[str, ...] = (
    *("", " ", ".", "..", "...", "/", "//", "../etc/passwd", "..\\..\\windows", "a/../b"),
    *("a/b/c", "/etc/passwd", "a..b", "a/..", "./a", "a.", "a.b.", "~root", "\\\\server\\share"),
    *("C:\\task", "c:task", "file:///etc/passwd", "%2e%2e", "%2e%2e%2f", "%252e%252e%252f"),
    *("a%00", "a%2fb", "..%c0%af", "a\x00", "a\x00b", "\x00", "name\n", "\nname", "na\nme"),
    *("name\r", "name\r\n", "name\t", "name ", " name", "na me", "Name", "NAME", "-name"),
    *("_name", ".name", "n\u0430me", "\u00dftask", "na\u0131me", "\uff41\uff42\uff43"),
    *("name\u200b", "\u202ename", "nam\u00e9", "\u0663", "name\ufeff", "\U0001f3d4", "a" * 65),
    *("a" * 10_000, "a." * 33, "name;drop table", "name'--", 'name"', "name$(id)", "name`id`"),
    *("name|cat", "name*", "name?", "name#x", "name:1", "name=1", "{name}", "${name}"),
    *("<script>", "name+1", "name,other"),
)


def calls_with_name(registry: Registry, name: str) -> tuple[Callable[[], object], ...]:
    """Return every call of a registry with a name, given this name; a task `intent` exists."""
    draft, blobs = make_draft()
    return (
        lambda: registry.resolve(TaskReference(task=name)),
        lambda: registry.resolve(TaskReference(task="intent", alias=name)),
        lambda: registry.task(name),
        lambda: registry.versions(name),
        lambda: registry.promote(name, "prod", 1),
        lambda: registry.promote("intent", name, 1),
        lambda: registry.rollback(name, "prod"),
        lambda: registry.rollback("intent", name),
        lambda: registry.history(name, "prod"),
        lambda: registry.history("intent", name),
        lambda: registry.delete(name, 1),
        lambda: registry.readers(name, 1),
        lambda: registry.verify(name),
        lambda: registry.publish(draft.model_copy(update={"task": name}), blobs),
    )
