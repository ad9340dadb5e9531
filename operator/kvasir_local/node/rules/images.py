"""Maps an image name to a program on this machine: there is no container engine, so a name we do not know cannot run.

Our images start the entry point that their Dockerfile declares, from the environment that runs the node.
"""

from dataclasses import dataclass

from kvasir_api import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where programs lie on this machine.

    scripts: the directory of the environment's console scripts; envoy: its binary, if any.
    """

    scripts: str
    envoy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What an image brings: its ENTRYPOINT and CMD, as a Dockerfile would state them."""

    entrypoint: tuple[str, ...]
    command: tuple[str, ...] = ()


def basename(image: str) -> str:
    """Repository path's last part, without registry, tag and digest: `registry:5000/a/b:1@sha256:…` → `b`."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def image_of(name: str, programs: Programs) -> Image | None:
    """The image of that name; None when this machine has no program for it."""
    kvasir = f"{programs.scripts}/kvasir"
    match basename(name):
        case names.IMAGE_OPERATOR:
            return Image(entrypoint=(kvasir, "operator"))
        case names.IMAGE_GATEWAY:
            return Image(entrypoint=(kvasir, "gateway"))
        case names.IMAGE_RUNTIME | names.IMAGE_RUNTIME_CPU:
            return Image(entrypoint=(kvasir, "serve"))
        case "envoy" if programs.envoy:
            return Image(entrypoint=(programs.envoy,))
        case "process" if name.startswith("kvasir-local/"):
            return Image(entrypoint=())
        case _:
            return None


def argv(image: Image, container_command: tuple[str, ...], container_args: tuple[str, ...]) -> tuple[str, ...]:
    """The program and its arguments: `command` replaces the entry point and drops CMD, `args` replaces CMD.

    May be empty.
    """
    if container_command:
        return (*container_command, *container_args)
    return (*image.entrypoint, *(container_args or image.command))
