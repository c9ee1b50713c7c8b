//! Requests: token, redirects, timeouts, and which failures are worth another attempt.

use super::address::{Origin, resolved, shown};
use super::failure::{Failure, Tried, unanswered};
use super::proxy::Way;
use super::settings::Access;
use super::{certificates, connect};
use crate::error::{Error, Result};
use std::io::Read;
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, Response, StatusCode, Uri, header};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body};

/// Attempts after the first; with pauses of 1, 2, 4, 8 and 16 s.
const MOST_RETRIES: u32 = 5;
/// The longest pause that a server's `Retry-After` can ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The hub needs one or two.
const MOST_REDIRECTS: usize = 10;
/// A page lists 1,000 files with some 400 bytes each.
const MOST_JSON_BYTES: usize = 8 << 20;
/// Silences that a whole JSON answer may last.
const JSON_SILENCES: u32 = 4;

/// How long to wait.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// Before the second attempt; doubles with each.
    pub first_pause: Duration,
    /// For a connection, for all of an answer's headers, and for the next bytes of its
    /// body, which may take as long as it likes while bytes come.
    pub silence: Duration,
}

/// The pauses between attempts at one thing.
pub struct Pauses {
    first: Duration,
    taken: u32,
}

impl Pauses {
    /// The next pause, `None` when it is time to give up.
    pub fn next(&mut self, asked: Option<Duration>) -> Option<Duration> {
        if self.taken == MOST_RETRIES {
            return None;
        }
        let pause = self.first.saturating_mul(2_u32.pow(self.taken));
        self.taken += 1;
        Some(pause.max(asked.unwrap_or_default().min(LONGEST_PAUSE)))
    }

    /// Counts from the start again: there was progress.
    pub fn reset(&mut self) {
        self.taken = 0;
    }
}

/// Sends requests to one hub.
pub struct Transport {
    agent: Agent,
    access: Access,
    proxy: Option<Way>,
}

impl Transport {
    /// Opens nothing yet.
    ///
    /// # Errors
    /// `SSL_CERT_FILE` names no certificates, or a variable for proxies no proxy.
    pub fn new(access: Access) -> Result<Transport> {
        let silence = Some(access.patience.silence);
        let mut tls = TlsConfig::builder();
        if let Some(roots) = certificates::from_env()? {
            tls = tls.root_certs(roots);
        }
        let proxy = Way::from_env()?;
        let config = Agent::config_builder()
            .proxy(proxy.as_ref().and_then(Way::proxy))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("llama-rs/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build())
            .timeout_resolve(silence)
            .timeout_connect(silence)
            .timeout_send_request(silence)
            .timeout_recv_response(silence)
            .timeout_per_read(silence)
            .build();
        let agent = connect::agent(config);
        Ok(Transport {
            agent,
            access,
            proxy,
        })
    }

    pub fn access(&self) -> &Access {
        &self.access
    }

    pub fn pauses(&self) -> Pauses {
        Pauses {
            first: self.access.patience.first_pause,
            taken: 0,
        }
    }

    /// Follows redirects; an answer is 200, 206 or 416.
    pub fn get(
        &self,
        uri: &Uri,
        headers: &[(header::HeaderName, String)],
    ) -> Tried<Response<Body>> {
        self.get_within(uri, headers, None)
    }

    /// As [`Transport::get`], with a limit on the time that the whole body takes.
    fn get_within(
        &self,
        uri: &Uri,
        headers: &[(header::HeaderName, String)],
        most: Option<Duration>,
    ) -> Tried<Response<Body>> {
        let mut uri = uri.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.send(&uri, headers, most)?;
            let status = answer.status();
            if !status.is_redirection() {
                return match status {
                    StatusCode::OK
                    | StatusCode::PARTIAL_CONTENT
                    | StatusCode::RANGE_NOT_SATISFIABLE => Ok(answer),
                    _ => Err(self.refused(&uri, &answer)),
                };
            }
            uri = next_hop(&uri, answer.headers())?;
        }
        Err(Failure::Final(Error::input(format!(
            "{}: more than {MOST_REDIRECTS} redirects; check HF_ENDPOINT",
            shown(&uri)
        ))))
    }

    /// True where the token may be sent.
    fn is_own(&self, uri: &Uri) -> bool {
        Origin::of(uri).as_ref() == Some(&self.access.origin)
    }

    fn send(
        &self,
        uri: &Uri,
        headers: &[(header::HeaderName, String)],
        most: Option<Duration>,
    ) -> Tried<Response<Body>> {
        let proxy = self.proxy.as_ref().filter(|way| way.leads_to(uri));
        proxy.map_or(Ok(()), |way| way.check(uri))?;
        let request = self.agent.get(uri.clone()).config();
        let given = proxy.and_then(Way::proxy);
        let request = request.proxy(given).timeout_recv_body(most);
        let mut request = request.build();
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let (Some(token), true) = (&self.access.token, self.is_own(uri)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        request.call().map_err(|e| unanswered(uri, proxy, e))
    }

    fn refused(&self, uri: &Uri, answer: &Response<Body>) -> Failure {
        let status = answer.status();
        let (code, at) = (status.as_u16(), shown(uri));
        let own = self.is_own(uri);
        let text = match (status, self.access.token.is_some()) {
            (StatusCode::TOO_MANY_REQUESTS, _) => {
                return Failure::Again(
                    format!("{at}: {code}, too many requests"),
                    retry_after(answer),
                );
            }
            _ if status.is_server_error() => {
                let cause = format!("{at}: {code}, the server has a problem");
                return Failure::Again(cause, retry_after(answer));
            }
            // A signed address that has run out; the next attempt gets a new one.
            (StatusCode::FORBIDDEN, _) if !own => {
                return Failure::again(format!("{at}: {code}, refused"));
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, false) => {
                "the repository is gated, private or not there; check the name, or ask for \
                 access on its page and set HF_TOKEN"
            }
            (StatusCode::UNAUTHORIZED, true) => {
                "the token is wrong or has run out; set HF_TOKEN to one that is valid"
            }
            (StatusCode::FORBIDDEN, true) => {
                "the token has no access to this gated or private repository; ask for access \
                 on its page, or set HF_TOKEN to a token that has it"
            }
            (StatusCode::NOT_FOUND, _) => "no such repository or file; check the name",
            _ => "not what a model hub answers; check HF_ENDPOINT",
        };
        Failure::Final(Error::input(format!("{at}: {code}, {text}")))
    }

    /// The body of an answer, at most [`MOST_JSON_BYTES`], and its headers; tried several
    /// times.
    pub fn json(&self, uri: &Uri, warn: &dyn Fn(String)) -> Tried<(Vec<u8>, HeaderMap)> {
        let mut pauses = self.pauses();
        loop {
            let (cause, asked) = match self.json_once(uri) {
                Err(Failure::Again(cause, asked)) => (cause, asked),
                done => return done,
            };
            match pauses.next(asked) {
                Some(pause) => pause_after(&cause, pause, warn),
                None => return Err(Failure::Again(cause, asked)),
            }
        }
    }

    fn json_once(&self, uri: &Uri) -> Tried<(Vec<u8>, HeaderMap)> {
        let most = self.access.patience.silence * JSON_SILENCES;
        let (head, body) = self.get_within(uri, &[], Some(most))?.into_parts();
        let deadline = Instant::now() + most;
        let mut reader = body.into_reader();
        let mut bytes = Vec::new();
        let mut piece = [0; 16 << 10];
        loop {
            let n = reader.read(&mut piece).map_err(|e| {
                Failure::again(format!("{}: the answer broke off: {e}", shown(uri)))
            })?;
            if n == 0 {
                return Ok((bytes, head.headers));
            }
            bytes.extend_from_slice(&piece[..n]);
            if bytes.len() > MOST_JSON_BYTES || Instant::now() > deadline {
                return Err(Failure::Final(Error::input(format!(
                    "{}: the answer does not end; check HF_ENDPOINT",
                    shown(uri)
                ))));
            }
        }
    }
}

/// Tells, then waits.
pub fn pause_after(cause: &str, pause: Duration, warn: &dyn Fn(String)) {
    warn(format!(
        "{cause}; trying again in {:.0} s",
        pause.as_secs_f64().ceil()
    ));
    std::thread::sleep(pause);
}

fn next_hop(from: &Uri, headers: &HeaderMap) -> Tried<Uri> {
    let location = headers.get(header::LOCATION);
    let location = location.and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| resolved(from, location));
    let origins = (Origin::of(from), next.as_ref().and_then(Origin::of));
    match (next, origins) {
        (Some(next), (Some(from), Some(to))) if !from.is_downgrade(&to) => Ok(next),
        _ => Err(Failure::Final(Error::input(format!(
            "{}: redirected to no usable address; check HF_ENDPOINT",
            shown(from)
        )))),
    }
}

fn retry_after(answer: &Response<Body>) -> Option<Duration> {
    let value = answer.headers().get(header::RETRY_AFTER)?;
    value.to_str().ok()?.parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_PAUSE, MOST_RETRIES, Pauses};
    use std::time::Duration;

    #[test]
    fn pauses_double_until_it_is_time_to_give_up() {
        let second = Duration::from_secs(1);
        let mut pauses = Pauses {
            first: second,
            taken: 0,
        };
        let all: Vec<u64> = std::iter::from_fn(|| pauses.next(None))
            .map(|pause| pause.as_secs())
            .collect();
        assert_eq!(all, [1, 2, 4, 8, 16]);
        assert_eq!(all.len(), MOST_RETRIES as usize);
        pauses.reset();
        assert_eq!(pauses.next(Some(second * 5)), Some(second * 5));
        assert_eq!(pauses.next(Some(second * 5000)), Some(LONGEST_PAUSE));
    }
}
