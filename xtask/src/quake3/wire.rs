//! Out-of-band packets: four bytes 0xff, then text, over UDP.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until, timeout_at};

/// What stands before every out-of-band packet.
const OUT_OF_BAND: &[u8] = &[0xff; 4];

/// How long an answer may take before the question is sent again, since UDP may lose either. Servers answer one
/// address only ten times at once and once a second after that, so it is not short.
pub(super) const RESEND: Duration = Duration::from_millis(500);

/// How long to wait after a refusal, which comes at once from a host on which the server is still starting.
const RETRY_REFUSED: Duration = Duration::from_millis(50);

/// Larger than any packet of the protocol.
pub(super) const MAX_DATAGRAM: usize = 1 << 16;

/// A socket that hears this server alone.
pub(super) async fn connect(addr: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = if addr.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await.context("could not open a UDP socket")?;
    socket.connect(addr).await.context("could not use its address")?;
    Ok(socket)
}

pub(super) fn out_of_band(text: &[u8]) -> Vec<u8> {
    [OUT_OF_BAND, text].concat()
}

/// Sends the question until its answer comes, and returns what follows the answer's header.
pub(super) async fn ask(
    socket: &UdpSocket,
    question: &[u8],
    header: &str,
    timeout: Duration,
) -> Result<String> {
    let deadline = Instant::now() + timeout;
    loop {
        send(socket, question).await?;
        let resend = deadline.min(Instant::now() + RESEND);
        match receive(socket, &[header], resend).await {
            Ok(answer) => return Ok(answer.rest),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => {}
        }
    }
}

/// Sends one packet. A refusal that an earlier packet met shows here; the server may be about to start.
pub(super) async fn send(socket: &UdpSocket, packet: &[u8]) -> Result<()> {
    match socket.send(packet).await {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionRefused => {
            Err(error).context("could not send")
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// An out-of-band packet from the server.
pub(super) struct Answer {
    /// Its first word.
    pub(super) header: String,
    /// What follows it.
    pub(super) rest: String,
}

/// Waits for a packet with one of the `headers`; others are left aside.
pub(super) async fn receive(socket: &UdpSocket, headers: &[&str], deadline: Instant) -> Result<Answer> {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let length = match timeout_at(deadline, socket.recv(&mut buffer)).await {
            Err(_) => bail!("it did not answer in time"),
            Ok(Ok(length)) => length,
            // Nothing listens there yet, so there is no limit on questions to heed: the next may follow soon.
            Ok(Err(error)) => {
                sleep_until(deadline.min(Instant::now() + RETRY_REFUSED)).await;
                return Err(error).context("nothing listens there");
            }
        };
        let answer = buffer.get(..length).and_then(parse_answer);
        if let Some(answer) = answer.filter(|answer| headers.contains(&answer.header.as_str())) {
            return Ok(answer);
        }
    }
}

/// Splits an out-of-band packet after its first word.
pub(super) fn parse_answer(packet: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(packet.strip_prefix(OUT_OF_BAND)?).into_owned();
    let (header, rest) = text.split_once([' ', '\n']).unwrap_or((&text, ""));
    Some(Answer { header: header.to_owned(), rest: rest.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_of_the_game_channel_is_no_answer() {
        assert!(parse_answer(b"\x01\0\0\0statusResponse\n").is_none());
        let answer = parse_answer(b"\xff\xff\xff\xffstatusResponse\n\\a\\b\n").unwrap();
        assert_eq!((answer.header.as_str(), answer.rest.as_str()), ("statusResponse", "\\a\\b\n"));
    }
}
