"""Shuts a program in: namespaces, limits and a filter of system calls, then becomes it.

Runs as ``python -I -S inside.py SPEC``, in a process of its own with the standard library alone; SPEC is JSON, see
`rljax.tasks.sandbox.sandbox`. The program comes through the descriptor ``source``. What an ordinary user's kernel
refuses here ends it with `REFUSED` and a line on the descriptor ``report``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # without the time that importing typing takes
    from typing import Any

REFUSED = 70
BOX = "/box"

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
UNUSED_USERS = 1_900_000_000  # as root each program is a user of its own, so that processes are counted apart
MOUNT_SETATTR = 442
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

# What no program needs that computes: other processes, mounts and namespaces, sockets, memory that no limit counts, the
# kernel's own settings. By the numbers of linux/unistd.h; the second column is aarch64.
DENIED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "mount_setattr": (442, 442), "socket": (41, 198), "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "init_module": (175, 105), "finit_module": (313, 273), "kexec_load": (246, 104),
    "reboot": (169, 142), "swapon": (167, 224), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "acct": (163, 89), "syslog": (103, 116), "quotactl": (179, 60),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "fanotify_init": (300, 262),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "personality": (135, 92), "vhangup": (153, 58),
}  # fmt: skip
CLONE, CLONE3, PRCTL = (56, 220), (435, 435), (157, 167)
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_libc = ctypes.CDLL(None, use_errno=True)


def call(what: str, *arguments: Any) -> None:
    """Calls a function of libc; raises OSError where it fails."""
    given = [a.encode() if isinstance(a, str) else ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if getattr(_libc, what)(*given) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def change_mount(path: str, attributes: int, flags: int = 0) -> None:
    """Sets attributes of a mount, with `AT_RECURSIVE` of all beneath it."""
    changes = struct.pack("QQQQ", attributes, 0, 0, 0)
    call("syscall", MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, changes, len(changes))


def enter(spec: dict[str, Any]) -> int:
    """Leaves for namespaces of its own, in which there are the interpreter, its libraries, and an empty folder.

    Returns:
        A descriptor whose other end is held by the process that waits for this one, and by nobody else.
    """
    user, group = os.getuid(), os.getgid()
    try:
        call("unshare", NAMESPACES)
    except OSError:
        call("unshare", NAMESPACES | CLONE_NEWUSER)
        for file, line in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as settings:
                settings.write(line)
    waiter, held = os.pipe()
    if child := os.fork():
        await_and_report(child)
    os.close(held)
    hold_on()
    os.umask(0o022)
    call("mount", "none", "/", None, MS_REC | MS_PRIVATE, None)
    call("mount", "tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    os.mkdir("/tmp/outside")
    os.chdir("/tmp")
    call("syscall", PIVOT_ROOT[platform.machine()], b".", b"outside")
    os.chdir("/")
    for source, path in [*spec["visible"], ("/dev/null", "/dev/null")]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mkdir(path) if os.path.isdir(f"/outside{source}") else open(path, "w").close()
        call("mount", f"/outside{source}", path, None, MS_BIND | MS_REC, None)
        if path != "/dev/null":
            change_mount(path, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, AT_RECURSIVE)
    for target, path in spec["links"]:
        os.symlink(target, path)
    os.mkdir(BOX)
    call("mount", "tmpfs", BOX, "tmpfs", MS_NOSUID | MS_NODEV, f"size={spec['folder_bytes']},nr_inodes=10000,mode=700")
    call("umount2", "/outside", MNT_DETACH)
    os.rmdir("/outside")
    change_mount("/", MOUNT_ATTR_RDONLY)
    if user == 0:
        user = UNUSED_USERS + spec["number"]
        os.chown(BOX, user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    return waiter


def await_and_report(child: int) -> None:
    """Waits for the first process in there, with which all others in there end, and ends as it did."""
    descriptor = os.pidfd_open(child)

    def end(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended already
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def hold_on() -> None:
    """Has the kernel kill this process when the one that waits for it is dead."""
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def is_gone(waiter: int) -> bool:
    """Returns whether who held the other end is dead."""
    os.set_blocking(waiter, False)
    try:
        return not os.read(waiter, 1)
    except BlockingIOError:
        return False


def limit(spec: dict[str, Any]) -> None:
    """Sets the limits of each process."""
    limits = {
        resource.RLIMIT_AS: spec["memory_bytes"],
        resource.RLIMIT_CPU: spec["cpu_seconds"],
        resource.RLIMIT_NPROC: spec["processes"],
        resource.RLIMIT_FSIZE: spec["folder_bytes"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for what, value in limits.items():
        resource.setrlimit(what, (value, value))


def filtered() -> bytes:
    """Returns the filter of system calls, as the kernel's BPF program: what is denied is answered with EPERM."""
    architecture, column = ARCHITECTURES[platform.machine()]
    allow, deny, absent = 0x7FFF0000, 0x00050001, 0x00050026  # EPERM; ENOSYS, on which libc takes an older call
    load, equal, at_least, mask, give = 0x20, 0x15, 0x35, 0x45, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (give, 0, 0, deny), (load, 0, 0, 0)]
    program += [(at_least, 0, 1, 0x40000000), (give, 0, 0, deny)]  # the x32 calls of x86_64
    for numbers in DENIED.values():
        program += [(equal, 0, 1, numbers[column]), (give, 0, 0, deny)]
    program += [(equal, 0, 1, CLONE3[column]), (give, 0, 0, absent)]
    program += [(equal, 0, 3, CLONE[column]), (load, 0, 0, 16), (mask, 0, 1, NAMESPACES | CLONE_NEWUSER)]
    program += [(give, 0, 0, deny), (load, 0, 0, 0)]
    program += [(equal, 0, 3, PRCTL[column]), (load, 0, 0, 16), (equal, 0, 1, PR_SET_PDEATHSIG), (give, 0, 0, deny)]
    program += [(give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def forbid() -> None:
    """Gives up every privilege for good, and filters system calls."""
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    program = filtered()
    held = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(held))
    call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)


def main() -> None:
    """Shuts itself in and becomes the program."""
    spec = json.loads(sys.argv[1])
    hold_on()
    if spec["enter"] and os.getppid() != spec["parent"]:
        os._exit(REFUSED)
    try:
        waiter = enter(spec) if spec["enter"] else None
        os.chdir(BOX)
        with open(spec["source"], "rb") as source, open("program.py", "wb") as file:
            file.write(source.read())
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        hold_on()  # which a change of user ends
        if waiter is not None and is_gone(waiter):  # since before this process held on
            os._exit(REFUSED)
        limit(spec)
        forbid()
    except (OSError, KeyError, ValueError) as error:
        os.write(spec["report"], f"{type(error).__name__}: {error}".encode())
        os._exit(REFUSED)
    os.set_inheritable(spec["report"], False)
    os.execve(spec["command"][0], spec["command"], spec["environment"])


if __name__ == "__main__":
    main()
