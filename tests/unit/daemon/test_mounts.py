"""Which file system a folder lies on, read from the kernel's table."""

import pytest

from daemon.mounts import file_system_of, is_shared

TABLE = """\
25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 25 0:40 / /mnt/nas rw,relatime shared:9 - nfs4 nas:/export rw
31 25 0:41 / /mnt/nas/local rw - tmpfs tmpfs rw
32 25 0:42 / /mnt/with\\040space rw - fuse.sshfs me@there: rw
33 25 0:43 / /mnt/twice rw - ext4 /dev/vdb rw
34 25 0:44 / /mnt/twice rw - 9p host rw
35 25 0:45 / /mnt/\u65e5\\040\u672c rw - cifs //there rw
36 25 0:46 / /mnt/two\u2028lines rw - tmpfs tmpfs rw
"""


@pytest.fixture
def mountinfo(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("/", "ext4"),
        ("/home/me/spool", "ext4"),
        ("/mnt/nas", "nfs4"),
        ("/mnt/nas/spool/p/inbox", "nfs4"),
        ("/mnt/nasty", "ext4"),
        ("/mnt/nas/local/x", "tmpfs"),
        ("/mnt/with space/x", "fuse.sshfs"),
        ("/mnt/twice/x", "9p"),
        ("/mnt/\u65e5 \u672c/x", "cifs"),
        ("/mnt/two\u2028lines/x", "tmpfs"),
    ],
)
def test_the_innermost_and_latest_mount_counts(folder, expected, mountinfo):
    """Blanks in mount points are escaped in the kernel's table, nothing else is."""
    assert file_system_of(folder, mountinfo) == expected


def test_the_real_table_knows_where_this_test_lies(tmp_path):
    found = file_system_of(tmp_path)
    assert found
    assert not is_shared("ext4")


def test_a_link_is_followed(tmp_path):
    (tmp_path / "link").symlink_to("/proc")
    assert file_system_of(tmp_path / "link") == "proc"


def test_what_other_machines_can_change_is_shared_and_what_is_local_is_not():
    shared = ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "fuse.s3fs", "ceph", "virtiofs", "lustre"]
    local = ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk", "nfsd", "", "vfat"]
    assert [name for name in shared if not is_shared(name)] == []
    assert [name for name in local if is_shared(name)] == []
