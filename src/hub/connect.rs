//! Connections: with a limit on the time that all of one takes, and errors that say whether
//! they are a proxy's.
//!
//! The HTTP crate limits each read of a proxy's answer, so that one that comes drop by drop
//! would never end; the chain of its parts is the same otherwise.

use std::fmt;
use std::time::Instant;
use ureq::http::Uri;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, NextTimeout, RustlsConnector,
    TcpConnector, Transport, time,
};
use ureq::{Agent, Error, Timeout, config::Config};

/// What the HTTP crate sends requests with.
pub fn agent(config: Config) -> Agent {
    let proxy = config.proxy().map(|proxy| proxy.uri().clone());
    let chain =
        ().chain(ConnectProxyConnector::default())
            .chain(TcpConnector::default())
            .chain(Limit)
            .chain(RustlsConnector::default());
    let connector = Told { chain, proxy };
    Agent::with_parts(config, connector, DefaultResolver::default())
}

/// An error of the connection to a proxy, not of what comes through it.
#[derive(Debug)]
pub struct AtProxy(pub Error);

impl fmt::Display for AtProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for AtProxy {}

/// Marks errors at a proxy as such.
#[derive(Debug)]
struct Told<C> {
    chain: C,
    proxy: Option<Uri>,
}

impl<C: Connector> Connector for Told<C> {
    type Out = C::Out;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<()>,
    ) -> Result<Option<C::Out>, Error> {
        // The connection to the proxy is made by the same chain, with no proxy on the way.
        let is_proxy = details.config.proxy().is_none() && self.proxy.as_ref() == Some(details.uri);
        let connected = self.chain.connect(details, chained);
        connected.map_err(|error| match is_proxy {
            true => Error::Other(Box::new(AtProxy(error))),
            false => error,
        })
    }
}

/// Limits the time until a connection can be used.
#[derive(Debug)]
struct Limit;

impl<In: Transport> Connector<In> for Limit {
    type Out = Limited<In>;

    fn connect(
        &self,
        details: &ConnectionDetails,
        chained: Option<In>,
    ) -> Result<Option<Limited<In>>, Error> {
        let end = match details.now {
            time::Instant::Exact(start) => start.checked_add(*details.timeout.after),
            _ => None,
        };
        Ok(chained.map(|transport| Limited { transport, end }))
    }
}

/// A connection; while it is being made it may be used until `end`.
#[derive(Debug)]
struct Limited<T> {
    transport: T,
    end: Option<Instant>,
}

impl<T> Limited<T> {
    /// What is left of the time, where the connection is still being made.
    fn left(&self, mut timeout: NextTimeout) -> Result<NextTimeout, Error> {
        if let (Timeout::Connect, Some(end)) = (timeout.reason, self.end) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout(Timeout::Connect));
            }
            timeout.after = time::Duration::Exact(left.min(*timeout.after));
        }
        Ok(timeout)
    }
}

impl<T: Transport> Transport for Limited<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.transport.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        let timeout = self.left(timeout)?;
        self.transport.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        let timeout = self.left(timeout)?;
        self.transport.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.transport.is_open()
    }

    fn is_tls(&self) -> bool {
        self.transport.is_tls()
    }
}
