//! Watches that are late, that repeat themselves, and that end.

use std::error::Error;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::sleep;

/// The body of an answer.
pub(super) type Stream = UnsyncBoxBody<Bytes, Box<dyn Error + Send + Sync>>;

/// How many events are under way at once where they are late.
const UNDER_WAY: usize = 1024;
/// How many events are served again after each one.
const AGAIN: usize = 3;

/// What happens to watches.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Watches {
    /// Nothing.
    #[default]
    Whole,
    /// Each ends after every event.
    Cut,
    /// Each event comes this much later.
    Late(Duration),
    /// After each event the last ones come again, from the oldest.
    Repeated,
}

/// The lines of a watch, with what happens to them, until the next cut.
pub(super) fn through(body: Body, watches: Watches, cuts: watch::Receiver<usize>) -> Stream {
    let lines = lines(body);
    let lines = match watches {
        Watches::Whole => lines,
        Watches::Cut => lines.take(1).boxed(),
        Watches::Late(time) => lines.map(move |line| late(line, time)).buffered(UNDER_WAY).boxed(),
        Watches::Repeated => repeated(lines),
    };
    BodyExt::boxed_unsync(StreamBody::new(stream::unfold(Some((lines, cuts)), until_cut)))
}

type Lines = BoxStream<'static, Bytes>;
type Open = Option<(Lines, watch::Receiver<usize>)>;

/// The next line. A cut is a break; the end of the lines is a good end.
async fn until_cut(open: Open) -> Option<(Result<Frame<Bytes>, Box<dyn Error + Send + Sync>>, Open)> {
    let (mut lines, mut cuts) = open?;
    tokio::select! {
        _ = cuts.changed() => Some((Err("the watch is cut".into()), None)),
        line = lines.next() => line.map(|line| (Ok(Frame::data(line)), Some((lines, cuts)))),
    }
}

async fn late(line: Bytes, time: Duration) -> Bytes {
    sleep(time).await;
    line
}

fn repeated(lines: Lines) -> Lines {
    let serve_again = |last: &mut Vec<Bytes>, line: Bytes| {
        last.push(line.clone());
        let from = last.len().saturating_sub(AGAIN);
        last.drain(..from);
        let served: Vec<Bytes> = std::iter::once(line).chain(last.iter().cloned()).collect();
        std::future::ready(Some(stream::iter(served)))
    };
    lines.scan(Vec::new(), serve_again).flatten().boxed()
}

/// The lines of a body, each whole. What is left at its end is served as it is.
fn lines(body: Body) -> Lines {
    let start = (BodyStream::new(body), Vec::new());
    let next = |(mut body, mut rest): (BodyStream<Body>, Vec<u8>)| async {
        loop {
            if let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let after = rest.split_off(end + 1);
                return Some((Bytes::from(rest), (body, after)));
            }
            match body.next().await {
                Some(Ok(frame)) => rest.extend(frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None if rest.is_empty() => return None,
                Some(Err(_)) | None => return Some((Bytes::from(rest), (body, Vec::new()))),
            }
        }
    };
    stream::unfold(start, next).boxed()
}
