//! Processor time of whoever listens on an address of this host.
//!
//! Method: the listening socket's inode is looked up in `/proc/net/tcp`, the
//! processes that hold it in `/proc/PID/fd`, their time in
//! `/proc/PID/task/TID/schedstat` (nanoseconds; `stat` counts in ticks of 10 ms,
//! too coarse for a block). What it cannot know: the time of threads that ended
//! between two looks; processes of other users or hosts.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The processes that listen at `address`; none where they cannot be seen. One's
/// own process is left out: it does more than serve.
pub fn listeners(address: SocketAddr) -> Vec<u32> {
    let IpAddr::V4(ip) = address.ip() else {
        return Vec::new();
    };
    let table = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let inodes: Vec<String> = table
        .lines()
        .filter_map(|line| listening_inode(line, ip, address.port()))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if inodes.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = process
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let holds = fs::read_dir(process.path().join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok())
            .any(|link| {
                inodes
                    .iter()
                    .any(|inode| link.as_os_str() == inode.as_str())
            });
        if holds && pid != std::process::id() {
            found.push(pid);
        }
    }
    found
}

/// The inode in a line of `/proc/net/tcp`, if it listens there.
fn listening_inode(line: &str, ip: Ipv4Addr, port: u16) -> Option<u64> {
    const LISTEN: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let (local_ip, local_port) = fields.next()?.split_once(':')?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?;
    if state != LISTEN || u16::from_str_radix(local_port, 16).ok()? != port {
        return None;
    }
    // Bytes as they lie in the memory of a little-endian machine.
    let local = Ipv4Addr::from(u32::from_str_radix(local_ip, 16).ok()?.to_le_bytes());
    if local != ip && !local.is_unspecified() {
        return None;
    }
    inode.parse().ok().filter(|inode| *inode > 0)
}

/// Processor time of these processes so far, in ns; none where that of one
/// cannot be seen.
pub fn time_of(processes: &[u32]) -> Option<u64> {
    if processes.is_empty() {
        return None;
    }
    let mut sum = 0;
    for pid in processes {
        for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
            let path = task.ok()?.path().join("schedstat");
            // A thread may end between the listing and the reading.
            let Ok(text) = fs::read_to_string(path) else {
                continue;
            };
            sum += text.split_whitespace().next()?.parse::<u64>().ok()?;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "   3: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 \
                        00000000   102        0 64321 1 0000000000000000 100 0 0 10 0";

    #[test]
    fn lines_of_the_kernel_s_table() {
        let at = Ipv4Addr::LOCALHOST;
        assert_eq!(listening_inode(LINE, at, 8080), Some(64321));
        assert_eq!(listening_inode(LINE, at, 8081), None);
        assert_eq!(
            listening_inode(LINE, Ipv4Addr::new(127, 0, 0, 2), 8080),
            None
        );
        let any = LINE.replace("0100007F", "00000000");
        assert_eq!(listening_inode(&any, at, 8080), Some(64321));
        let connected = LINE.replace(" 0A ", " 01 ");
        assert_eq!(listening_inode(&connected, at, 8080), None);
        assert_eq!(listening_inode("sl local_address", at, 8080), None);
    }

    #[test]
    fn one_s_own_process_is_left_out() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        assert!(listeners(listener.local_addr().expect("bound")).is_empty());
        assert!(time_of(&[std::process::id()]).expect("one's own time") > 0);
        assert_eq!(time_of(&[]), None);
    }
}
