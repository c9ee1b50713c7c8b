//! How much memory the host can give: what the system has available, or less where a
//! control group (a container, a service) may only have so much.

use std::path::{Path, PathBuf};

/// Memory the system can give without swapping; `None` where it does not say.
pub fn available_bytes() -> Option<usize> {
    available_below(Path::new("/"))
}

/// As [`available_bytes`], of the system whose files lie below `root`.
fn available_below(root: &Path) -> Option<usize> {
    let info = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    let system = kib.checked_mul(1024)?;
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup"));
    let groups = groups.unwrap_or_default();
    let left = groups.lines().filter_map(|line| left_in_group(root, line));
    Some(left.fold(system, usize::min))
}

/// The files of one version of control groups.
struct Files {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Rows of `memory.stat` that count what is given back when memory is short: pages
    /// of files, among them those of models.
    cached: [&'static str; 2],
}

const VERSION_1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: Files = Files {
    // Beyond the second a group is slowed down.
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    cached: ["inactive_file", "active_file"],
};

/// What the group of one line of `/proc/self/cgroup` may still take, the groups around
/// it considered; `None` without a limit.
fn left_in_group(root: &Path, line: &str) -> Option<usize> {
    // number:controllers:path; version 2 is number 0 without controllers.
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (mounts, files) = match controllers {
        "" => (
            ["sys/fs/cgroup", "sys/fs/cgroup/unified"].as_slice(),
            VERSION_2,
        ),
        _ if controllers.split(',').any(|c| c == "memory") => {
            (["sys/fs/cgroup/memory"].as_slice(), VERSION_1)
        }
        _ => return None,
    };
    // Inside a container the path may be that of outside, so each part of it is tried.
    let path = PathBuf::from(path.trim_start_matches('/'));
    let mut least = None;
    for mount in mounts {
        for group in path.ancestors() {
            let left = left_in(&root.join(mount).join(group), &files);
            least = [least, left].into_iter().flatten().min();
        }
    }
    least
}

/// What the group in this folder may still take itself.
fn left_in(folder: &Path, files: &Files) -> Option<usize> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    // `max`, which is no number, is no limit.
    let limits = files.limits.iter().filter_map(|name| read(name));
    let limit: usize = limits.filter_map(|text| text.trim().parse().ok()).min()?;
    let usage: usize = read(files.usage)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let row = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        let counts = files.cached.contains(&key);
        counts.then(|| value.trim().parse::<usize>().ok())?
    };
    let cached = stat.lines().filter_map(row).fold(0, usize::saturating_add);
    Some(limit.saturating_sub(usage.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    /// A system with 16 GiB available and these files.
    fn system(groups: &str, files: &[(String, String)]) -> Option<usize> {
        let root = tempfile::tempdir().expect("a folder");
        let meminfo = "MemTotal: 33554432 kB\nMemAvailable:   16777216 kB\n".to_string();
        let groups = ("proc/self/cgroup".to_string(), groups.to_string());
        let all = [("proc/meminfo".to_string(), meminfo), groups];
        for (name, text) in all.iter().chain(files) {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        available_below(root.path())
    }

    fn group(folder: &str, names: [&str; 2], limit: String, usage: usize) -> Vec<(String, String)> {
        let path = |name: &str| format!("{folder}/{name}");
        vec![
            (path(names[0]), limit),
            (path(names[1]), format!("{usage}\n")),
        ]
    }

    #[test]
    fn without_groups_the_system_counts() {
        assert_eq!(system("", &[]), Some(16 * GIB));
        assert_eq!(system("5:cpu:/a\nodd line\n", &[]), Some(16 * GIB));
        let nothing = tempfile::tempdir().expect("a folder");
        assert_eq!(available_below(nothing.path()), None);
    }

    #[test]
    fn a_limit_less_what_is_in_use_counts_when_it_is_lower() {
        let v2 = ["memory.max", "memory.current"];
        let v1 = ["memory.limit_in_bytes", "memory.usage_in_bytes"];
        for (line, folder, names, cached) in [
            ("0::/box", "sys/fs/cgroup/box", v2, "inactive_file"),
            ("0::/", "sys/fs/cgroup", v2, "active_file"),
            // The path of outside, which is not mounted in here.
            ("0::/docker/1a2b", "sys/fs/cgroup", v2, "inactive_file"),
            ("0::/", "sys/fs/cgroup/unified", v2, "inactive_file"),
            (
                "4:memory:/a/b",
                "sys/fs/cgroup/memory/a",
                v1,
                "total_active_file",
            ),
            (
                "4:cpu,memory:/",
                "sys/fs/cgroup/memory",
                v1,
                "total_inactive_file",
            ),
        ] {
            let files = group(folder, names, format!("{}\n", 4 * GIB), GIB);
            assert_eq!(system(line, &files), Some(3 * GIB), "{line}");
            let mut read_much = files.clone();
            let stat = format!("cache 5\n{cached} {}\nrss 7\n", GIB / 2);
            read_much.push((format!("{folder}/memory.stat"), stat));
            let left = system(line, &read_much);
            assert_eq!(left, Some(3 * GIB + GIB / 2), "{line}");
            let full = group(folder, names, GIB.to_string(), 2 * GIB);
            assert_eq!(system(line, &full), Some(0), "{line}");
            for none in ["max", "9223372036854771712", "nonsense", ""] {
                let open = group(folder, names, none.to_string(), GIB);
                assert_eq!(system(line, &open), Some(16 * GIB), "{line}");
            }
        }
    }

    #[test]
    fn the_tightest_of_nested_groups_counts() {
        let v2 = ["memory.max", "memory.current"];
        let mut files = group("sys/fs/cgroup/a", v2, (2 * GIB).to_string(), GIB / 2);
        files.extend(group("sys/fs/cgroup/a/b", v2, (8 * GIB).to_string(), GIB));
        assert_eq!(system("0::/a/b", &files), Some(GIB + GIB / 2));
    }
}
