//! Who is poked, and when: the agent of a claimed server reads its object when it is asked to, and watches nothing.
//!
//! Whoever writes a claim pokes at once. This rule is the leader's: it pokes again until the claim is confirmed or
//! over. What it remembers of earlier pokes is lost with the process, and the next leader begins anew.

use std::net::SocketAddr;

use jiff::{SignedDuration, Timestamp};

use super::observed::{Member, Server};
use super::poked::{Poked, Word, address};
use super::{reach, seats};
use crate::api::{Claim, Confirmation, GameServerGroup, State};

/// How long whoever wrote a claim is left alone with it; the wait doubles from poke to poke.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(2);
/// The longest wait while a claim is not confirmed.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_secs(10);
/// How long after a claim that has confirmed itself its agent is told: a new leader does not know that it was.
const TOLD_WITHIN: SignedDuration = SignedDuration::from_mins(1);
/// The longest wait for an agent that does not answer and has nothing to hear.
const LONGEST_PROBE: SignedDuration = SignedDuration::from_secs(30);

/// What is to be done about one pod's agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Next {
    /// Nothing, unless something changes.
    Never,
    /// Look again at this time.
    At(Timestamp),
    /// Poke it there, about this if it is to hear of anything.
    Now(SocketAddr, Option<Word>),
}

/// What the leader does next about a member of `group`.
pub fn next(member: &Member, group: Option<&GameServerGroup>, last: Option<&Poked>, now: Timestamp) -> Next {
    let Some(address) = address(member) else { return Next::Never };
    let news = to_be_heard(member, group, last, now);
    let due = match &news {
        Some(news) => due(news, last),
        None => probe_is_due(member, group, last, now),
    };
    match due {
        None => Next::Never,
        Some(due) if due <= now => Next::Now(address, news.map(|news| news.word)),
        Some(due) => Next::At(due),
    }
}

/// What the agent is still to hear of.
struct News {
    word: Word,
    /// When whoever brought it about has poked the agent.
    since: Timestamp,
}

fn to_be_heard(
    member: &Member,
    group: Option<&GameServerGroup>,
    last: Option<&Poked>,
    now: Timestamp,
) -> Option<News> {
    let server = member.server.as_ref()?;
    if server.goes_with_its_node() && !server.is_ending() {
        let untold = !last.is_some_and(|last| last.has_told(&Word::NodeEnding));
        return untold.then_some(News { word: Word::NodeEnding, since: Timestamp::MIN });
    }
    let claim = claim_to_be_heard(server, group, last, now)?;
    Some(News { word: word(claim), since: claim.claimed_at.0 })
}

fn word(claim: &Claim) -> Word {
    Word::Claim(claim.id.clone())
}

fn claim_to_be_heard<'a>(
    server: &'a Server,
    group: Option<&GameServerGroup>,
    last: Option<&Poked>,
    now: Timestamp,
) -> Option<&'a Claim> {
    if !server.is_claimed() {
        return None;
    }
    // Here it is the players' coming that confirms it, not the game, which is told once.
    if let Some(newest) = seats::newest(server) {
        return Some(newest).filter(|newest| !last.is_some_and(|last| last.has_told(&word(newest))));
    }
    let claim = server.claim.as_ref()?;
    let wanted = match server.state {
        // What confirms it is the game, so it is told again even where the agent has answered.
        State::StandingBy => true,
        // Here the game has had no word in it: it is told once.
        State::Active => {
            let unasked = group.is_some_and(|group| group.spec.claim.confirmation == Confirmation::Immediate);
            let young = now.duration_since(claim.claimed_at.0) < TOLD_WITHIN;
            unasked && young && !last.is_some_and(|last| last.has_told(&word(claim)))
        }
        State::Creating | State::Initializing | State::Terminating | State::Terminated => false,
    };
    wanted.then_some(claim)
}

fn due(news: &News, last: Option<&Poked>) -> Option<Timestamp> {
    match last.filter(|last| last.is_about(&news.word)) {
        None => news.since.checked_add(FIRST_WAIT).ok(),
        Some(last) => last.at.checked_add(backoff(last.count, LONGEST_WAIT)).ok(),
    }
}

/// An agent that did not answer is asked until it does, or is gone: so the group's condition heals by itself. Where
/// that says more than this process has seen, as after a change of the leader, a few are asked.
fn probe_is_due(
    member: &Member,
    group: Option<&GameServerGroup>,
    last: Option<&Poked>,
    now: Timestamp,
) -> Option<Timestamp> {
    match last {
        Some(last) if last.missed > 0 => last.at.checked_add(backoff(last.missed, LONGEST_PROBE)).ok(),
        Some(_) => None,
        None => (reach::is_in_doubt(group?) && reach::is_in_sample(member)).then_some(now),
    }
}

/// 2 s, doubled with each poke that there was.
fn backoff(pokes: u32, longest: SignedDuration) -> SignedDuration {
    FIRST_WAIT.checked_mul(1 << pokes.min(16)).map_or(longest, |wait| wait.min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::InstanceStatus;
    use crate::api::conditions::AGENTS_REACHABLE;
    use crate::rules::fixtures::{
        active, at, claimed, conditioned, group_with_agent, shared_by, standing_by, with_agent,
    };

    const THERE: &str = "10.0.0.1:9355";

    fn now_about(id: Option<&str>) -> Next {
        Next::Now(THERE.parse().unwrap(), id.map(|id| Word::Claim(id.to_owned())))
    }

    fn poked(claim: &str, count: u32, missed: u32, seconds: i64) -> Poked {
        let error = (missed > 0).then(|| "refused".to_owned());
        Poked { at: at(seconds), about: Some(Word::Claim(claim.to_owned())), count, missed, error }
    }

    #[test]
    fn only_agents_that_run_in_pods_of_ours_are_poked() {
        let group = group_with_agent();
        let without = claimed("a", "m", 60);
        assert_eq!(next(&without, Some(&group), None, at(9)), Next::Never);
        let claimed = with_agent(without);
        assert_eq!(next(&claimed, Some(&group), None, at(9)), now_about(Some("m")));
        let mut ending = claimed.clone();
        ending.pod.as_mut().unwrap().deleting = true;
        let mut starting = claimed.clone();
        starting.pod.as_mut().unwrap().game = crate::rules::observed::Game::Waiting { fault: None };
        let mut nowhere = claimed;
        nowhere.pod.as_mut().unwrap().ips.clear();
        for member in [ending, starting, nowhere] {
            assert_eq!(next(&member, Some(&group), None, at(9)), Next::Never);
        }
    }

    #[test]
    fn it_is_poked_again_and_again_until_the_claim_is_confirmed_or_over() {
        let group = group_with_agent();
        let member = with_agent(claimed("a", "m", 60));
        assert_eq!(next(&member, Some(&group), None, at(1)), Next::At(at(2)));
        let (mut last, mut times) = (None, Vec::new());
        for second in 0..60 {
            if let Next::Now(_, word) = next(&member, Some(&group), last.as_ref(), at(second)) {
                times.push(second);
                last = Some(Poked::after(last, word, Ok(()), at(second)));
            }
        }
        assert_eq!(times, [2, 6, 14, 24, 34, 44, 54]);
        for member in [with_agent(active("a")), with_agent(standing_by("a"))] {
            assert_eq!(next(&member, Some(&group), last.as_ref(), at(70)), Next::Never);
        }
    }

    #[test]
    fn another_claim_begins_anew() {
        let member = with_agent(claimed("a", "m2", 60));
        assert_eq!(next(&member, None, Some(&poked("m1", 6, 0, 1)), at(1)), Next::At(at(2)));
        let word = Some(Word::Claim("m2".into()));
        let after = Poked::after(Some(poked("m1", 6, 2, 1)), word, Err("late".into()), at(2));
        assert_eq!((after.count, after.missed, after.error.as_deref()), (1, 3, Some("refused")));
    }

    #[test]
    fn a_claim_that_confirms_itself_is_told_until_the_agent_has_answered() {
        let mut group = group_with_agent();
        group.spec.claim.confirmation = Confirmation::Immediate;
        let member = with_agent(active("a"));
        let id = "game-on-a";
        assert_eq!(next(&member, Some(&group), None, at(2)), now_about(Some(id)));
        assert_eq!(next(&member, Some(&group), Some(&poked(id, 1, 0, 2)), at(30)), Next::Never);
        assert_eq!(next(&member, Some(&group), Some(&poked(id, 1, 1, 2)), at(6)), now_about(Some(id)));
        assert_eq!(next(&member, Some(&group), None, at(61)), Next::Never);
    }

    /// Row A11: also while others play.
    #[test]
    fn the_newest_of_those_who_reserve_seats_is_told_until_the_agent_has_answered() {
        let group = group_with_agent();
        let member = with_agent(shared_by(&["m1", "m2"]));
        assert_eq!(next(&member, Some(&group), None, at(2)), now_about(Some("m2")));
        assert_eq!(next(&member, Some(&group), Some(&poked("m1", 1, 0, 2)), at(2)), now_about(Some("m2")));
        assert_eq!(next(&member, Some(&group), Some(&poked("m2", 1, 1, 2)), at(6)), now_about(Some("m2")));
        assert_eq!(next(&member, Some(&group), Some(&poked("m2", 1, 0, 2)), at(6)), Next::Never);
    }

    /// Row F20: whoever plays there, and whatever it has heard before.
    #[test]
    fn a_node_that_goes_is_told_of_until_the_agent_has_answered() {
        let group = group_with_agent();
        let mut member = with_agent(active("a"));
        let instance = member.server.as_mut().unwrap().instance.as_mut().unwrap();
        instance.status = InstanceStatus::SpotTerminating;
        let ask = |last: Option<&Poked>, second| next(&member, Some(&group), last, at(second));
        let told = Next::Now(THERE.parse().unwrap(), Some(Word::NodeEnding));
        assert_eq!(ask(Some(&poked("m", 3, 0, 0)), 1), told);
        let missed = Poked::after(None, Some(Word::NodeEnding), Err("refused".into()), at(1));
        assert_eq!(ask(Some(&missed), 2), Next::At(at(5)));
        let heard = Poked::after(Some(missed), Some(Word::NodeEnding), Ok(()), at(5));
        assert_eq!(ask(Some(&heard), 60), Next::Never);
    }

    #[test]
    fn an_agent_that_does_not_answer_is_asked_until_it_does() {
        let member = with_agent(standing_by("a"));
        assert_eq!(next(&member, None, Some(&poked("m", 1, 1, 0)), at(1)), Next::At(at(4)));
        assert_eq!(next(&member, None, Some(&poked("m", 9, 9, 0)), at(30)), now_about(None));
        assert_eq!(next(&member, None, Some(&poked("m", 9, 0, 0)), at(30)), Next::Never);
    }

    #[test]
    fn a_new_leader_asks_a_few_where_the_group_is_in_doubt() {
        let group = conditioned(group_with_agent(), AGENTS_REACHABLE, "False");
        let mut member = with_agent(standing_by("a"));
        assert_eq!(next(&member, Some(&group), None, at(0)), now_about(None));
        member.pod.as_mut().unwrap().slot = 16;
        assert_eq!(next(&member, Some(&group), None, at(0)), Next::Never);
        let fine = conditioned(group_with_agent(), AGENTS_REACHABLE, "True");
        assert_eq!(next(&with_agent(standing_by("a")), Some(&fine), None, at(0)), Next::Never);
    }
}
