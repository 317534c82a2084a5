//! Who is at the other end of a connection.

use std::net::{IpAddr, SocketAddr};

use tower_http::add_extension::AddExtension;

/// Address of the client, or of the proxy in front of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    /// Its address without the port; IPv4 in IPv6 as IPv4.
    pub(crate) fn ip(self) -> IpAddr {
        self.0.ip().to_canonical()
    }

    /// Lets every request of a connection know its peer.
    pub(crate) fn tell<S>(self, service: S) -> AddExtension<S, Peer> {
        AddExtension::new(service, self)
    }
}
