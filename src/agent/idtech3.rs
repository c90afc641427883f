//! `getstatus`, the out-of-band status query of idTech 3 servers.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::api::Players;

const QUERY: &[u8] = b"\xff\xff\xff\xffgetstatus\n";
const ANSWER: &[u8] = b"\xff\xff\xff\xffstatusResponse\n";
/// More than an idTech 3 server puts into one answer.
const ANSWER_LIMIT: usize = 16 * 1024;

/// A game that speaks it.
pub(super) struct Game {
    socket: UdpSocket,
}

impl Game {
    /// The game at `address`.
    pub(super) async fn new(address: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        socket.connect(address).await?;
        Ok(Self { socket })
    }

    /// Who plays, as the game says; none if it does not answer in time.
    pub(super) async fn ask(&mut self, within: Duration) -> Option<Players> {
        // A port that nobody listens on yet answers with an error: silence, for us.
        self.socket.send(QUERY).await.ok()?;
        let mut answer = vec![0; ANSWER_LIMIT];
        let length = timeout(within, self.socket.recv(&mut answer)).await.ok()?.ok()?;
        players(answer.get(..length)?)
    }
}

/// The players in an answer: one line of `\key\value` pairs, then a line for each.
fn players(answer: &[u8]) -> Option<Players> {
    let text = String::from_utf8_lossy(answer.strip_prefix(ANSWER)?);
    let mut lines = text.lines();
    let mut pairs = lines.next()?.split('\\').skip(1);
    let mut capacity = None;
    while let (Some(key), Some(value)) = (pairs.next(), pairs.next()) {
        if key.eq_ignore_ascii_case("sv_maxclients") {
            capacity = value.parse().ok();
        }
    }
    let count = lines.filter(|line| !line.trim().is_empty()).count();
    Some(Players { count: i32::try_from(count).ok()?, capacity: capacity? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn players_are_counted_and_the_capacity_is_read() {
        let answer = b"\xff\xff\xff\xffstatusResponse\n\\mapname\\oa_dm1\\sv_maxclients\\12\\g_needpass\\0\n\
            0 0 \"Sarge\"\n3 48 \"A \\\"player\\\"\"\n";
        assert_eq!(players(answer), Some(Players { count: 2, capacity: 12 }));
    }

    #[test]
    fn an_empty_server_has_no_players() {
        let answer = b"\xff\xff\xff\xffstatusResponse\n\\sv_maxclients\\8\n";
        assert_eq!(players(answer), Some(Players { count: 0, capacity: 8 }));
    }

    #[test]
    fn what_is_no_answer_is_none() {
        for answer in
            [b"".as_slice(), b"\xff\xff\xff\xffprint\nno", ANSWER, b"\xff\xff\xff\xffstatusResponse\n\\a"]
        {
            assert_eq!(players(answer), None);
        }
    }
}
