//! A model hub on this machine, with faults to switch on.

#[path = "hub_faults.rs"]
mod faults;

pub use faults::Faults;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// The repository that it serves.
pub const REPO: &str = "tester/tiny-GGUF";
/// Its first commit.
pub const COMMIT: &str = "1111111111111111111111111111111111111111";
/// Bytes sent at a time.
const PIECE: usize = 16 << 10;

/// One request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    pub target: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn is_file(&self) -> bool {
        self.target.contains("/resolve/")
    }

    fn range_start(&self) -> Option<usize> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        range.strip_suffix('-')?.parse().ok()
    }
}

struct State {
    address: String,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    commit: Mutex<String>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    sent: AtomicU64,
}

/// The server; its threads end with the process.
pub struct HubServer(Arc<State>);

impl HubServer {
    /// Serves these files of [`REPO`].
    pub fn start(files: &[(&str, &[u8])]) -> HubServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let files = files
            .iter()
            .map(|(name, bytes)| (name.to_string(), bytes.to_vec()));
        let state = Arc::new(State {
            address: format!("http://{address}"),
            files: Mutex::new(files.collect()),
            commit: Mutex::new(COMMIT.to_string()),
            faults: Mutex::default(),
            requests: Mutex::default(),
            sent: AtomicU64::new(0),
        });
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                thread::spawn(move || serve(&state, stream));
            }
        });
        HubServer(state)
    }

    pub fn address(&self) -> &str {
        &self.0.address
    }

    pub fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.faults.lock().expect("no panics")
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.0.requests.lock().expect("no panics").clone()
    }

    /// Those for the contents of files.
    pub fn file_requests(&self) -> Vec<Request> {
        let mut all = self.requests();
        all.retain(Request::is_file);
        all
    }

    /// Bytes of files that were sent.
    pub fn sent(&self) -> u64 {
        self.0.sent.load(Ordering::SeqCst)
    }

    /// A new commit with this file in it.
    pub fn commit(&self, commit: &str, name: &str, bytes: &[u8]) {
        *self.0.commit.lock().expect("no panics") = commit.to_string();
        let mut files = self.0.files.lock().expect("no panics");
        files.insert(name.to_string(), bytes.to_vec());
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What git calls a file with these bytes.
pub fn git_hash(bytes: &[u8]) -> String {
    let hash = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()))
        .chain_update(bytes)
        .finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Answers one request a connection; a client that has gone is none of its business.
fn serve(state: &State, stream: TcpStream) {
    let Some(request) = read_request(&stream) else {
        return;
    };
    state
        .requests
        .lock()
        .expect("no panics")
        .push(request.clone());
    let _ = answer(state, &request, stream);
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let target = first.split(' ').nth(1)?.to_string();
    let mut headers = Vec::new();
    for line in lines {
        let line = line.ok()?;
        if line.is_empty() {
            break;
        }
        let (key, value) = line.split_once(':')?;
        headers.push((key.to_string(), value.trim().to_string()));
    }
    Some(Request { target, headers })
}

fn answer(state: &State, request: &Request, mut stream: TcpStream) -> std::io::Result<()> {
    let faults = state.faults.lock().expect("no panics").clone();
    let token = faults.token.map(|token| format!("Bearer {token}"));
    if token.is_some() && request.header("authorization") != token.as_deref() {
        return plain(&mut stream, 401, "", "Invalid credentials");
    }
    if let Some(status) = planned_status(state, request) {
        return plain(&mut stream, status, "", "no");
    }
    let api = format!("/api/models/{REPO}/");
    if let Some(rest) = request.target.strip_prefix(&api) {
        return match rest.split('?').next() {
            Some("revision/main") => {
                let commit = state.commit.lock().expect("no panics").clone();
                plain(&mut stream, 200, "", &format!("{{\"sha\":\"{commit}\"}}"))
            }
            Some("tree/main") => list(state, &faults, rest, &mut stream),
            _ => plain(&mut stream, 404, "", "no"),
        };
    }
    let parts: Vec<&str> = request.target.splitn(6, '/').collect();
    let file = match parts[..] {
        ["", user, repo, "resolve", _, file] if format!("{user}/{repo}") == REPO => file,
        _ => return plain(&mut stream, 404, "", "no"),
    };
    if faults.endless_redirect || faults.redirect.is_some() {
        let base = faults.redirect.unwrap_or_default();
        let location = format!("Location: {base}{}\r\n", request.target);
        return plain(&mut stream, 302, &location, "");
    }
    let name = match faults.encoded_names {
        true => decoded(file),
        false => file.to_string(),
    };
    let bytes = state.files.lock().expect("no panics").get(&name).cloned();
    match bytes {
        Some(bytes) => send(state, &faults, request, &bytes, &mut stream),
        None => plain(&mut stream, 404, "", "no"),
    }
}

/// A name without `%XX`.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("hex"));
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).expect("UTF-8")
}

/// The next status that is planned for this kind of request.
fn planned_status(state: &State, request: &Request) -> Option<u16> {
    let mut faults = state.faults.lock().expect("no panics");
    let planned = match request.is_file() {
        true => &mut faults.file_status,
        false => &mut faults.api_status,
    };
    match planned {
        Some((status, left)) if *left > 0 => {
            *left -= 1;
            Some(*status)
        }
        _ => None,
    }
}

fn plain(stream: &mut TcpStream, status: u16, headers: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}"
    )
}

/// Two entries a page.
fn list(
    state: &State,
    faults: &Faults,
    query: &str,
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    if let Some(list) = faults.list {
        return plain(stream, 200, "", list);
    }
    let files = state.files.lock().expect("no panics").clone();
    let mut entries: Vec<String> = files
        .iter()
        .map(|(name, bytes)| {
            let (oid, size) = (sha256(bytes), bytes.len());
            let git = git_hash(bytes);
            if faults.outside_lfs {
                return format!(
                    "{{\"type\":\"file\",\"oid\":\"{git}\",\"size\":{size},\"path\":\"{name}\"}}"
                );
            }
            format!(
                "{{\"type\":\"file\",\"oid\":\"{git}\",\"size\":{size},\"path\":\"{name}\",\
                 \"lfs\":{{\"oid\":\"{oid}\",\"size\":{size},\"pointerSize\":134}}}}"
            )
        })
        .collect();
    if let Some(name) = faults.extra_name {
        let oid = "0".repeat(64);
        entries.push(format!(
            "{{\"type\":\"file\",\"oid\":\"\",\"size\":9,\"path\":\"{name}\",\
             \"lfs\":{{\"oid\":\"{oid}\",\"size\":9}}}}"
        ));
    }
    entries.push("{\"type\":\"directory\",\"oid\":\"\",\"size\":0,\"path\":\"x.gguf\"}".into());
    let pages: Vec<&[String]> = entries.chunks(2).collect();
    let cursor = query
        .split("cursor=")
        .nth(1)
        .and_then(|text| text.parse().ok());
    let page: usize = cursor.unwrap_or(0);
    let next = match faults.endless_list {
        true => Some(page),
        false => (page + 1 < pages.len()).then_some(page + 1),
    };
    let link = next.map(|next| {
        let base = match faults.relative_pages {
            true => String::new(),
            false => format!("{}/api/models/{REPO}/tree/main", state.address),
        };
        format!("Link: <{base}?recursive=true&cursor={next}>; rel=\"next\"\r\n")
    });
    let body = format!("[{}]", pages[page.min(pages.len() - 1)].join(","));
    plain(stream, 200, &link.unwrap_or_default(), &body)
}

fn send(
    state: &State,
    faults: &Faults,
    request: &Request,
    bytes: &[u8],
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    if let Some(body) = faults.instead {
        return plain(stream, 200, "Content-Type: text/html\r\n", body);
    }
    let etag = format!("\"{}\"", sha256(bytes));
    let mut bytes = bytes.to_vec();
    if faults.corrupt {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
    }
    let same = request
        .header("if-range")
        .is_none_or(|wanted| wanted == etag);
    let start = request
        .range_start()
        .filter(|_| same && !faults.ignore_range);
    let total = bytes.len();
    if start.is_some_and(|start| start >= total) {
        return plain(
            stream,
            416,
            &format!("Content-Range: bytes */{total}\r\n"),
            "",
        );
    }
    let first = start.unwrap_or(0);
    let length = total - first + faults.longer;
    let etag = match start {
        Some(_) if faults.other_part => "\"other\"".to_string(),
        _ => etag,
    };
    match start {
        None => write!(stream, "HTTP/1.1 200 OK\r\n")?,
        Some(_) => write!(
            stream,
            "HTTP/1.1 206 X\r\nContent-Range: bytes {first}-{}/{total}\r\n",
            total - 1
        )?,
    }
    if !faults.endless {
        write!(stream, "Content-Length: {length}\r\n")?;
    }
    write!(stream, "ETag: {etag}\r\nConnection: close\r\n\r\n")?;
    pieces(state, faults, &bytes[first..], stream)?;
    if !faults.endless {
        return Ok(());
    }
    loop {
        stream.write_all(&[0; PIECE])?;
    }
}

/// The body, piece by piece, until a fault strikes.
fn pieces(
    state: &State,
    faults: &Faults,
    body: &[u8],
    stream: &mut TcpStream,
) -> std::io::Result<()> {
    let cut = {
        let mut now = state.faults.lock().expect("no panics");
        let strikes = now.cut_after.is_some() && now.cuts > 0;
        now.cuts = now.cuts.saturating_sub(usize::from(strikes));
        now.cut_after.filter(|_| strikes)
    };
    let end = cut
        .or(faults.stall_after)
        .unwrap_or(body.len())
        .min(body.len());
    for piece in body[..end].chunks(PIECE) {
        thread::sleep(faults.pace);
        stream.write_all(piece)?;
        state.sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
    }
    if cut.is_none() && end < body.len() {
        // Until the client goes.
        let _ = stream.read(&mut [0]);
    }
    Ok(())
}
