//! Whom we call when somebody else names the address: public servers only. Images and webhooks both ask here. Owns
//! which addresses are public and that a connection goes to the very address that was judged. Calls nobody itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use futures_util::future::BoxFuture;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Whether an address leads to this machine.
pub(crate) fn is_loopback(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Looks names up and refuses those that lead inside; the connection goes to the very addresses that were looked at, so
/// that a name cannot mean one thing to us and another to the socket.
#[derive(Clone, Copy, Debug)]
pub struct PublicOnly {
    refusal: &'static str,
    look_up: LookUp,
}

/// Where a name leads, now: the next time it may lead elsewhere.
type LookUp = fn(Name) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>>;

impl PublicOnly {
    /// `refusal` is what is said about an address that is not public, and which setting allows it.
    #[must_use]
    pub fn or(refusal: &'static str) -> Self {
        let look_up: LookUp =
            |name| Box::pin(async move { Ok(tokio::net::lookup_host((name.as_str(), 0)).await?.collect()) });
        Self { refusal, look_up }
    }
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { refusal, look_up } = *self;
        Box::pin(async move {
            let found = look_up(name).await?;
            if found.iter().any(|address| !is_public(address.ip())) {
                return Err(refusal.into());
            }
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}

/// Where this machine reaches a listener of ours: "all addresses" is a place to listen, not one to call.
#[must_use]
pub fn reachable(mut listener: SocketAddr) -> SocketAddr {
    match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => listener.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => listener.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    listener
}

/// An address without a name is not looked up, so it is judged here.
#[must_use]
pub fn names_private_address(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host.parse::<IpAddr>().is_ok_and(|address| !is_public(address))
}

#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_public_v4(mapped),
            None => is_public_v6(address),
        },
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let shared = first == 100 && (64..128).contains(&second);
    let ours = address.is_private() || address.is_loopback() || address.is_link_local() || shared;
    // Of protocols, of relays, for measuring.
    let special = matches!((first, second, third), (192, 0, 0) | (192, 88, 99) | (198, 18..=19, _));
    let nobodys = first == 0 || first >= 224 || address.is_documentation() || address.is_broadcast();
    !ours && !special && !nobodys
}

/// Only the part of the space that is given out; of that, not what wraps an address of the old kind.
fn is_public_v6(address: Ipv6Addr) -> bool {
    let [first, second, ..] = address.segments();
    let given_out = first & 0xe000 == 0x2000;
    let wraps = first == 0x2002 || (first == 0x2001 && second < 0x0200);
    let documentation = (first == 0x2001 && second == 0x0db8) || (first == 0x3fff && second < 0x1000);
    given_out && !wraps && !documentation
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for inside in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fc00::1",
            "::ffff:10.0.0.1",
            "ff02::1",
            "64:ff9b::a00:1",
            "2002:a00:1::1",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
            "192.0.0.1",
            "192.88.99.1",
            "198.18.0.1",
            "::ffff:169.254.169.254",
            "fd00:ec2::254",
            "::127.0.0.1",
        ] {
            assert!(!is_public(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1", "::ffff:1.1.1.1"] {
            assert!(is_public(outside.parse().unwrap()), "{outside}");
        }
        let private = |url: &str| names_private_address(&Url::parse(url).unwrap());
        assert!(private("https://127.0.0.1/x") && private("https://[::1]/x") && private("https://0x7f.1/x"));
        assert!(!private("https://shop.example/x") && !private("https://1.1.1.1/x"));
    }

    #[tokio::test]
    async fn a_name_that_leads_inside_is_refused_when_it_is_looked_up() {
        let guard = PublicOnly::or("not a public one");
        let found = guard.resolve("localhost".parse().unwrap()).await;
        assert_eq!(found.err().unwrap().to_string(), "not a public one");
    }

    /// A name that is harmless when it is looked at, and leads inside from then on.
    fn rebound() -> PublicOnly {
        static LOOKS: AtomicUsize = AtomicUsize::new(0);
        let look_up: LookUp = |_| {
            let addresses: &[&str] = match LOOKS.fetch_add(1, Ordering::AcqRel) {
                0 => &["1.1.1.1:0", "[2606:4700::1111]:0"],
                1 => &["1.1.1.1:0", "127.0.0.1:0"],
                _ => &["127.0.0.1:0"],
            };
            let found = addresses.iter().map(|address| address.parse().unwrap()).collect();
            Box::pin(async move { Ok(found) })
        };
        PublicOnly { refusal: "not a public one", look_up }
    }

    /// What was judged is what is connected to, since nobody looks again in between; and each connection is judged anew.
    #[tokio::test]
    async fn a_name_that_changes_its_mind_does_not_get_through() {
        let guard = rebound();
        let name = || "shop.example".parse().unwrap();
        let judged: Vec<SocketAddr> = guard.resolve(name()).await.unwrap().collect();
        assert_eq!(judged, ["1.1.1.1:0", "[2606:4700::1111]:0"].map(|address| address.parse().unwrap()));
        let mixed = guard.resolve(name()).await;
        assert_eq!(mixed.err().unwrap().to_string(), "not a public one", "one inside is enough");

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://shop.example:{}/", listener.local_addr().unwrap().port());
        let client = reqwest::Client::builder().no_proxy().dns_resolver(guard).build().unwrap();
        for _ in 0..2 {
            let refused = client.get(&url).send().await.unwrap_err();
            let why = format!("{:#}", anyhow::Error::from(refused));
            assert!(why.contains("not a public one"), "{why}");
        }
        assert!(listener.accept().is_err(), "nobody knocked");
    }
}
