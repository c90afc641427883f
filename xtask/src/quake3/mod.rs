//! A small client of idTech 3, the protocol of Quake III Arena and `OpenArena`, over UDP.
//!
//! Queries and remote commands are out-of-band packets: four bytes 0xff, then text. A [`Player`] takes a seat as a
//! person's client does, without any graphics: `getchallenge`, then `connect` with its details packed by adaptive
//! Huffman coding. It goes no further than that (it loads no map and never moves), which is enough to hold a seat, to
//! stand in `getstatus` and to be counted among `g_humanplayers`.

mod huffman;
mod player;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};

pub(crate) use player::Player;
use wire::{ask, connect, out_of_band};

/// A server's answer to `getstatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The server's public settings: `mapname`, `sv_maxclients`, `sv_hostname`, …
    pub(crate) info: BTreeMap<String, String>,
    /// The names of those who are connected, people and bots, with their colour codes (`^1`).
    pub(crate) players: Vec<String>,
}

/// Asks a server for its settings and players; asks again while there is no answer, until `timeout`.
pub(crate) async fn status(addr: SocketAddr, timeout: Duration) -> Result<Status> {
    let answer = async {
        let socket = connect(addr).await?;
        ask(&socket, &out_of_band(b"getstatus\n"), "statusResponse", timeout).await
    };
    let answer = answer.await.with_context(|| format!("no status from the game server {addr}: is it up?"))?;
    Ok(parse_status(&answer))
}

/// One line of `\key\value` pairs, then a line `score ping "name"` a player. Lines of another form are left out.
fn parse_status(text: &str) -> Status {
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split('\\').skip(1);
    let mut info = BTreeMap::new();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        info.insert(key.to_owned(), value.to_owned());
    }
    let players = lines.filter_map(player_name).collect();
    Status { info, players }
}

fn player_name(line: &str) -> Option<String> {
    let mut fields = line.splitn(3, ' ');
    let (_score, _ping): (i32, i32) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(fields.next()?.trim().trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::UdpSocket;
    use tokio::time::Instant;

    use super::*;
    use wire::{MAX_DATAGRAM, parse_answer};

    const WAIT: Duration = Duration::from_secs(5);

    #[test]
    fn status_reads_settings_and_players() {
        let status =
            parse_status("\\mapname\\oa_dm1\\sv_maxclients\\12\n3 48 \"^1Red Ann\"\n-1 0 \"Sarge\"\n");
        assert_eq!(status.info["mapname"], "oa_dm1");
        assert_eq!(status.info["sv_maxclients"], "12");
        assert_eq!(status.players, ["^1Red Ann", "Sarge"]);
    }

    #[test]
    fn status_leaves_out_what_is_broken() {
        let status = parse_status("\\mapname\\oa_dm1\\odd\nnot a player\n\n1 2");
        assert_eq!(status.info.len(), 1);
        assert!(status.players.is_empty());
        assert_eq!(parse_status(""), Status::default());
    }

    /// A server that answers the `lost`-plus-first question of each kind, as UDP may lose some.
    async fn server(lost: usize) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = vec![0; MAX_DATAGRAM];
            let mut seen = BTreeMap::<String, usize>::new();
            loop {
                let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
                let Some(question) = parse_answer(&buffer[..length]) else { continue };
                let count = seen.entry(question.header.clone()).or_default();
                *count += 1;
                if *count <= lost {
                    continue;
                }
                let answer: &[u8] = match (question.header.as_str(), question.rest.trim()) {
                    ("getstatus", _) => b"statusResponse\n\\mapname\\oa_dm1\n0 0 \"Ann\"\n",
                    ("getchallenge", _) => b"challengeResponse -7 0 71",
                    ("connect", _) => b"connectResponse -7",
                    ("rcon", "secret kick Ann") => b"print\ndone\n",
                    ("rcon", _) => b"print\nBad rconpassword.\n",
                    other => panic!("an unknown question: {other:?}"),
                };
                socket.send_to(&out_of_band(answer), from).await.unwrap();
            }
        });
        addr
    }

    #[tokio::test]
    async fn player_joins_and_leaves() {
        let addr = server(0).await;
        let player = Player::join(addr, "Ann", WAIT).await.unwrap();
        assert_eq!(status(addr, WAIT).await.unwrap().players.len(), 1);
        player.leave("secret", WAIT).await.unwrap();
    }

    #[tokio::test]
    async fn question_that_is_lost_is_asked_again() {
        let addr = server(1).await;
        let player = Player::join(addr, "Ann", WAIT).await.unwrap();
        status(addr, WAIT).await.unwrap();
        player.leave("secret", WAIT).await.unwrap();
    }

    #[tokio::test]
    async fn wrong_password_is_named() {
        let addr = server(0).await;
        let player = Player::join(addr, "Ann", WAIT).await.unwrap();
        let error = player.leave("wrong", WAIT).await.unwrap_err();
        assert!(format!("{error:#}").contains("rconPassword"));
    }

    #[tokio::test]
    async fn no_server_is_an_error_in_time() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let addr = socket.local_addr().unwrap();
        drop(socket);
        let asked = Instant::now();
        assert!(status(addr, Duration::from_millis(200)).await.is_err());
        assert!(asked.elapsed() < WAIT);
    }
}
