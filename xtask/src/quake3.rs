//! A small client of idTech 3, the protocol of Quake III Arena and `OpenArena`, over UDP.
//!
//! Queries and remote commands are out-of-band packets: four bytes 0xff, then text. A [`Player`] takes a seat as a
//! person's client does, without any graphics: `getchallenge`, then `connect` with its details packed by adaptive
//! Huffman coding. It goes no further than that (it loads no map and never moves), which is enough to hold a seat, to
//! stand in `getstatus` and to be counted among `g_humanplayers`.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use tokio::{
    net::UdpSocket,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

/// What stands before every out-of-band packet.
const OUT_OF_BAND: &[u8] = &[0xff; 4];

/// How long an answer may take before the question is sent again, since UDP may lose either. Servers answer one
/// address only ten times at once and once a second after that, so it is not short.
const RESEND: Duration = Duration::from_millis(500);

/// How long to wait after a refusal, which comes at once from a host on which the server is still starting.
const RETRY_REFUSED: Duration = Duration::from_millis(50);

/// How often a seated player shows that it is there. Servers drop those silent for `sv_timeout` (200 s by default).
const KEEP_ALIVE: Duration = Duration::from_millis(500);

/// A server's answer to `getstatus`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The server's public settings: `mapname`, `sv_maxclients`, `sv_hostname`, …
    pub(crate) info: BTreeMap<String, String>,
    /// Who is connected, people and bots.
    pub(crate) players: Vec<PlayerLine>,
}

/// One player in a [`Status`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlayerLine {
    /// Points in the running match.
    pub(crate) score: i32,
    /// Round-trip time in milliseconds: 0 for a bot, 999 for one that has not yet entered the game.
    pub(crate) ping: i32,
    /// The name, with its colour codes (`^1`).
    pub(crate) name: String,
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

/// Runs a console command on a server and returns what it printed first.
///
/// It is sent once, since a command may not be safe to repeat. A refused password is an error. `quit` ends the server
/// before it can answer, so it times out.
pub(crate) async fn rcon(
    addr: SocketAddr,
    password: &str,
    command: &str,
    timeout: Duration,
) -> Result<String> {
    let what = || {
        format!("no answer to rcon {command:?} from the game server {addr}: is it up, with rconPassword set?")
    };
    let socket = connect(addr).await.with_context(what)?;
    let deadline = Instant::now() + timeout;
    send(&socket, &out_of_band(format!("rcon {password} {command}\n").as_bytes()))
        .await
        .with_context(what)?;
    let answer = receive(&socket, &["print"], deadline).await.with_context(what)?;
    accepted(&answer.rest).with_context(|| format!("the game server {addr} did not run {command:?}"))
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

/// A seat taken by a person's client; see the module's documentation.
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
                tokio::time::sleep_until(next).await;
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

/// Larger than any packet of the protocol.
const MAX_DATAGRAM: usize = 1 << 16;

/// A socket that hears this server alone.
async fn connect(addr: SocketAddr) -> Result<UdpSocket> {
    let any: SocketAddr = if addr.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any).await.context("could not open a UDP socket")?;
    socket.connect(addr).await.context("could not use its address")?;
    Ok(socket)
}

fn out_of_band(text: &[u8]) -> Vec<u8> {
    [OUT_OF_BAND, text].concat()
}

/// Sends the question until its answer comes, and returns what follows the answer's header.
async fn ask(socket: &UdpSocket, question: &[u8], header: &str, timeout: Duration) -> Result<String> {
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
async fn send(socket: &UdpSocket, packet: &[u8]) -> Result<()> {
    match socket.send(packet).await {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionRefused => {
            Err(error).context("could not send")
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// An out-of-band packet from the server.
struct Answer {
    header: String,
    rest: String,
}

/// Waits for a packet with one of the `headers`; others are left aside.
async fn receive(socket: &UdpSocket, headers: &[&str], deadline: Instant) -> Result<Answer> {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        let length = match timeout_at(deadline, socket.recv(&mut buffer)).await {
            Err(_) => bail!("it did not answer in time"),
            Ok(Ok(length)) => length,
            // Nothing listens there yet, so there is no limit on questions to heed: the next may follow soon.
            Ok(Err(error)) => {
                tokio::time::sleep_until(deadline.min(Instant::now() + RETRY_REFUSED)).await;
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
fn parse_answer(packet: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(packet.strip_prefix(OUT_OF_BAND)?).into_owned();
    let (header, rest) = text.split_once([' ', '\n']).unwrap_or((&text, ""));
    Some(Answer { header: header.to_owned(), rest: rest.to_owned() })
}

/// One line of `\key\value` pairs, then a line `score ping "name"` a player. Lines of another form are left out.
fn parse_status(text: &str) -> Status {
    let mut lines = text.lines();
    let mut words = lines.next().unwrap_or_default().split('\\').skip(1);
    let mut info = BTreeMap::new();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        info.insert(key.to_owned(), value.to_owned());
    }
    let players = lines.filter_map(parse_player).collect();
    Status { info, players }
}

fn parse_player(line: &str) -> Option<PlayerLine> {
    let mut fields = line.splitn(3, ' ');
    Some(PlayerLine {
        score: fields.next()?.parse().ok()?,
        ping: fields.next()?.parse().ok()?,
        name: fields.next()?.trim().trim_matches('"').to_owned(),
    })
}

/// Adaptive Huffman coding after Faller, Gallager and Knuth, as idTech 3 packs a `connect`.
///
/// Both ends start with one leaf that stands for every byte not yet seen, and change the tree in the same way after
/// each byte, so no table is sent.
mod huffman {
    use anyhow::{Context, Result};

    /// Packs `bytes`: their count in two bytes, then the codes, the first bit in each byte's lowest place.
    pub(super) fn pack(bytes: &[u8]) -> Result<Vec<u8>> {
        let count = u16::try_from(bytes.len()).context("more than 65,535 bytes cannot be packed")?;
        let mut tree = Tree::new();
        let mut bits = Vec::new();
        for &byte in bytes {
            if let Some(position) = tree.position(Content::Byte(byte)) {
                bits.extend(tree.code(position));
                tree.count(position);
            } else {
                bits.extend(tree.code(tree.unseen()));
                bits.extend((0..8).rev().map(|place| byte >> place & 1 == 1));
                tree.add(byte);
            }
        }
        let codes =
            bits.chunks(8).map(|chunk| chunk.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit)));
        let mut packed = count.to_be_bytes().to_vec();
        packed.extend(codes);
        Ok(packed)
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Content {
        /// Every byte that has not been seen.
        Unseen,
        Byte(u8),
        /// The parent of the nodes at this place and the next.
        Parent(usize),
    }

    struct Node {
        weight: u32,
        content: Content,
    }

    /// The nodes from the heaviest, the root, to the lightest, the unseen bytes. Siblings stand side by side, the
    /// right one (bit 1) before the left one (bit 0): that order is the coding's invariant, and makes links upward
    /// needless.
    pub(super) struct Tree(Vec<Node>);

    impl Tree {
        pub(super) fn new() -> Self {
            Self(vec![Node { weight: 0, content: Content::Unseen }])
        }

        fn position(&self, content: Content) -> Option<usize> {
            self.0.iter().position(|node| node.content == content)
        }

        fn unseen(&self) -> usize {
            self.0.len().saturating_sub(1)
        }

        /// The parent of the node at `position`; none for the root.
        fn parent(&self, position: usize) -> Option<usize> {
            let right = if position % 2 == 1 { position } else { position.checked_sub(1)? };
            self.position(Content::Parent(right))
        }

        /// The bits that lead from the root to the node at `position`.
        fn code(&self, position: usize) -> Vec<bool> {
            let path = std::iter::successors(Some(position), |&position| self.parent(position));
            let mut code: Vec<_> =
                path.take_while(|&position| position > 0).map(|position| position % 2 == 1).collect();
            code.reverse();
            code
        }

        /// The leaf of the unseen splits into the new byte's and its own.
        fn add(&mut self, byte: u8) {
            let split = self.unseen();
            self.0.pop();
            self.0.extend([
                Node { weight: 1, content: Content::Parent(split + 1) },
                Node { weight: 1, content: Content::Byte(byte) },
                Node { weight: 0, content: Content::Unseen },
            ]);
            if let Some(parent) = self.parent(split) {
                self.count(parent);
            }
        }

        /// Counts one more occurrence of the node at `position` and of all above it. Each first takes the place of
        /// the first node as heavy as itself, so that the order by weight still holds after it has grown.
        fn count(&mut self, position: usize) {
            let mut current = Some(position);
            while let Some(position) = current {
                let leader = self.leader(position);
                let place = if Some(leader) == self.parent(position) { position } else { leader };
                self.0.swap(position, place);
                if let Some(node) = self.0.get_mut(place) {
                    node.weight += 1;
                }
                current = self.parent(place);
            }
        }

        fn leader(&self, position: usize) -> usize {
            let weight = self.0.get(position).map(|node| node.weight);
            self.0.iter().position(|node| Some(node.weight) == weight).unwrap_or(position)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(5);

    #[test]
    fn status_reads_settings_and_players() {
        let status =
            parse_status("\\mapname\\oa_dm1\\sv_maxclients\\12\n3 48 \"^1Red Ann\"\n-1 0 \"Sarge\"\n");
        assert_eq!(status.info["mapname"], "oa_dm1");
        assert_eq!(status.info["sv_maxclients"], "12");
        let players: Vec<_> = status.players.iter().map(|p| (p.score, p.ping, p.name.as_str())).collect();
        assert_eq!(players, [(3, 48, "^1Red Ann"), (-1, 0, "Sarge")]);
    }

    #[test]
    fn status_leaves_out_what_is_broken() {
        let status = parse_status("\\mapname\\oa_dm1\\odd\nnot a player\n\n1 2");
        assert_eq!(status.info.len(), 1);
        assert!(status.players.is_empty());
        assert_eq!(parse_status(""), Status::default());
    }

    #[test]
    fn packet_of_the_game_channel_is_no_answer() {
        assert!(parse_answer(b"\x01\0\0\0statusResponse\n").is_none());
        let answer = parse_answer(b"\xff\xff\xff\xffstatusResponse\n\\a\\b\n").unwrap();
        assert_eq!((answer.header.as_str(), answer.rest.as_str()), ("statusResponse", "\\a\\b\n"));
    }

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

    #[test]
    fn packing_is_what_a_server_unpacks() {
        // Worked by hand: eight bits of "a", one bit for the second, then the way to the unseen and eight bits of "b".
        assert_eq!(huffman::pack(b"aab").unwrap(), [0, 3, 0b1000_0110, 0b0001_1001, 0b0000_0001]);
        assert_eq!(huffman::pack(b"").unwrap(), [0, 0]);
        // Settings as a client sends them, in the coding that ioquake3 1.36 was seen to take.
        let packed = huffman::pack(br#""\protocol\71\name\Ann\rate\25000""#).unwrap();
        assert_eq!(
            packed,
            [
                0x00, 0x22, 0x44, 0x74, 0x70, 0x88, 0x13, 0xec, 0xc7, 0xa5, 0x61, 0x2c, 0xd8, 0xe8, 0xb0,
                0x1b, 0xc6, 0x05, 0xbb, 0xc7, 0x50, 0xd8, 0x2e, 0xa6, 0x03, 0x82, 0x3a, 0x7f, 0xff, 0x6f,
                0x16, 0xa6, 0x0f, 0xab, 0xc1, 0x70, 0x15, 0x01,
            ]
        );
    }

    #[test]
    fn more_than_its_count_holds_is_not_packed() {
        assert!(huffman::pack(&vec![0; 1 << 16]).is_err());
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
                    ("rcon", "secret kick Ann" | "secret status") => b"print\ndone\n",
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
    async fn command_that_is_lost_is_not_repeated() {
        let addr = server(1).await;
        assert!(rcon(addr, "secret", "status", 2 * RESEND).await.is_err());
        assert_eq!(rcon(addr, "secret", "status", WAIT).await.unwrap(), "done");
    }

    #[tokio::test]
    async fn wrong_password_is_named() {
        let addr = server(0).await;
        let error = rcon(addr, "wrong", "status", WAIT).await.unwrap_err();
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

    #[tokio::test]
    async fn name_that_could_end_a_setting_is_refused() {
        let error = Player::join(([127, 0, 0, 1], 9).into(), "a\\name\\b", WAIT).await.unwrap_err();
        assert!(error.to_string().contains("choose another"));
    }
}
