//! A player without any graphics: takes a seat as a person's client does, and holds it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::huffman;
use super::wire::{MAX_DATAGRAM, RESEND, ask, connect, out_of_band, receive, send};

/// How often a seated player shows that it is there. Servers drop those silent for `sv_timeout` (200 s by default).
const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// A seat taken by a person's client.
///
/// Dropped without [`Player::leave`] it falls silent, and the server drops it after its `sv_timeout`.
#[derive(Debug)]
pub(crate) struct Player {
    addr: SocketAddr,
    name: String,
    keep_alive: JoinHandle<()>,
}

impl Player {
    /// Takes a seat under `name`, which is of letters, digits, `-` and `_` so that it is the same in every command.
    pub(crate) async fn join(addr: SocketAddr, name: &str, timeout: Duration) -> Result<Self> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        ensure!(
            !name.is_empty() && name.chars().all(is_plain),
            "the player's name {name:?} is not of letters, digits, - and _ alone: choose another"
        );
        let what = || format!("{name} could not join the game server {addr}");
        let socket = connect(addr).await.with_context(what)?;
        let qport = qport();
        seat(&socket, name, qport, timeout).await.with_context(what)?;
        let keep_alive = tokio::spawn(keep_alive(Arc::new(socket), qport));
        Ok(Self { addr, name: name.to_owned(), keep_alive })
    }

    /// Gives the seat up at once, by rcon: a client's own farewell would need the whole game protocol. A seat that the
    /// server took away before is given up as well.
    pub(crate) async fn leave(self, rcon_password: &str, timeout: Duration) -> Result<()> {
        let what = || format!("{} could not leave the game server {}", self.name, self.addr);
        let command = format!("rcon {rcon_password} kick {}\n", self.name);
        let socket = connect(self.addr).await.with_context(what)?;
        let answer =
            ask(&socket, &out_of_band(command.as_bytes()), "print", timeout).await.with_context(what)?;
        accepted(&answer).with_context(what)?;
        Ok(())
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.keep_alive.abort();
    }
}

/// The handshake, up to the seat.
async fn seat(socket: &UdpSocket, name: &str, qport: u16, timeout: Duration) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let challenge = ask(socket, &out_of_band(b"getchallenge\n"), "challengeResponse", timeout).await?;
    let mut fields = challenge.split_whitespace();
    let number: i32 =
        fields.next().and_then(|field| field.parse().ok()).context("its challenge is no number")?;
    // The third field is the server's protocol; servers that do not name it are of OpenArena's age.
    let protocol = fields.nth(1).unwrap_or("71");
    let userinfo = format!(
        "\"\\protocol\\{protocol}\\qport\\{qport}\\challenge\\{number}\\name\\{name}\\cl_guid\\{}\\rate\\25000\\snaps\\20\\model\\sarge\"",
        guid()
    );
    let mut packet = out_of_band(b"connect ");
    packet.extend(huffman::pack(userinfo.as_bytes())?);
    loop {
        send(socket, &packet).await?;
        let resend = deadline.min(Instant::now() + RESEND);
        match receive(socket, &["connectResponse", "print"], resend).await {
            Ok(answer) if answer.header == "connectResponse" => return Ok(()),
            Ok(answer) => bail!("it refused: {}", answer.rest.trim()),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => {}
        }
    }
}

/// Shows the server every half second that the player is there, and drains what it sends.
///
/// A packet in the game's own channel is a sequence number and the client's port number; an empty message behind them
/// counts as a sign of life and asks for nothing.
async fn keep_alive(socket: Arc<UdpSocket>, qport: u16) {
    let mut buffer = vec![0; MAX_DATAGRAM];
    for sequence in 1_u32.. {
        let mut packet = sequence.to_le_bytes().to_vec();
        packet.extend(qport.to_le_bytes());
        // A server that is gone shows in `status`; a player has nobody to tell.
        let _ = socket.send(&packet).await;
        let next = Instant::now() + KEEP_ALIVE;
        while let Ok(received) = timeout_at(next, socket.recv(&mut buffer)).await {
            if received.is_err() {
                sleep_until(next).await;
            }
        }
    }
}

/// Tells players behind one address apart, so two of one process must not share it.
fn qport() -> u16 {
    u16::try_from(random() & 0xffff).unwrap_or_default()
}

/// What a client makes once and keeps; `OpenArena` admits nobody without one, of this form.
fn guid() -> String {
    format!("{:016X}{:016X}", random(), random())
}

/// Random enough to tell players apart, which is all that is asked here: the seeds of std's hash maps.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// What a command printed, unless it was refused.
fn accepted(printed: &str) -> Result<String> {
    let text = printed.trim_end();
    ensure!(
        !text.starts_with("Bad rconpassword") && !text.starts_with("No rconpassword"),
        "it refused rcon ({text}): give the rconPassword that it was started with"
    );
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(5);

    #[test]
    fn refused_rcon_is_an_error() {
        assert!(accepted("Bad rconpassword.\n").is_err());
        assert_eq!(accepted("map: oa_dm1\n").unwrap(), "map: oa_dm1");
    }

    #[test]
    fn guid_is_of_the_form_that_openarena_admits() {
        let guid = guid();
        assert_eq!(guid.len(), 32);
        assert!(guid.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(guid, super::guid());
    }

    #[tokio::test]
    async fn name_that_could_end_a_setting_is_refused() {
        let error = Player::join(([127, 0, 0, 1], 9).into(), "a\\name\\b", WAIT).await.unwrap_err();
        assert!(error.to_string().contains("choose another"));
    }
}
