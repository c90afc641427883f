//! The writes of the audit log, put down to the servers that they were for.

use std::collections::{BTreeMap, BTreeSet};

use super::audit::{Request, Writer};

/// Where a write belongs.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Account {
    /// Counted, of this server.
    Counted(String),
    /// Of this server, but apart.
    Apart(String, String),
    /// Of all servers together.
    Shared(String),
    /// Nothing to do with them.
    Foreign,
}

/// All writes of some servers.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    /// Each server's writes, in order: those that count, and those to the same objects that do not.
    servers: BTreeMap<String, Vec<(&'a Request, Account)>>,
    by_writer: BTreeMap<Writer, usize>,
    others: BTreeMap<String, usize>,
}

impl<'a> Ledger<'a> {
    /// Puts down what was written for `servers`.
    pub(super) fn of(requests: &'a [Request], servers: &BTreeSet<String>) -> Self {
        let mut ledger = Self {
            servers: servers.iter().map(|server| (server.clone(), Vec::new())).collect(),
            by_writer: BTreeMap::from([(Writer::Operator, 0), (Writer::Agent, 0)]),
            others: BTreeMap::new(),
        };
        for request in requests.iter().filter(|request| request.is_write() && request.is_done()) {
            ledger.put(request, account(request, servers));
        }
        for writes in ledger.servers.values_mut() {
            writes.sort_by_key(|(request, _)| request.received);
        }
        ledger
    }

    fn put(&mut self, request: &'a Request, account: Account) {
        match &account {
            Account::Counted(_) => *self.by_writer.entry(request.writer()).or_default() += 1,
            Account::Apart(_, what) | Account::Shared(what) => {
                *self.others.entry(what.clone()).or_default() += 1;
            }
            Account::Foreign => {}
        }
        let server = match &account {
            Account::Counted(server) | Account::Apart(server, _) => Some(server),
            Account::Shared(_) | Account::Foreign => None,
        };
        if let Some(writes) = server.and_then(|server| self.servers.get_mut(server)) {
            writes.push((request, account));
        }
    }

    /// The writes that count, of all servers.
    pub(super) fn by_writer(&self) -> &BTreeMap<Writer, usize> {
        &self.by_writer
    }

    /// The writes that do not, of all servers.
    pub(super) fn others(&self) -> &BTreeMap<String, usize> {
        &self.others
    }

    /// How many servers took how many writes, and all of them of the one that took the most.
    pub(super) fn print(&self, target: usize) {
        let mut spread = BTreeMap::<usize, usize>::new();
        for writes in self.servers.values() {
            *spread.entry(counted(writes)).or_default() += 1;
        }
        let Some((server, writes)) = self.servers.iter().max_by_key(|(_, writes)| counted(writes)) else {
            return;
        };
        println!("The writes for {server}, in order; those without a number are apart:\n");
        println!("{:>3}  {:>9}  {:<20} {:<7} {:<20} WHAT", "NO", "AT", "WRITER", "VERB", "RESOURCE");
        let mut number = 0;
        let begin = writes.first().map(|(request, _)| request.received).unwrap_or_default();
        for (request, account) in writes {
            let mark = if matches!(account, Account::Counted(_)) {
                number += 1;
                number.to_string()
            } else {
                String::new()
            };
            println!(
                "{mark:>3}  {:>7.3} s  {:<20} {:<7} {:<20} {}",
                request.received.duration_since(begin).as_secs_f64(),
                request.writer(),
                request.verb,
                request.target(),
                request.changes().join(", ")
            );
        }
        println!();
        for (writes, servers) in &spread {
            let over = if *writes > target { format!(": more than {target}") } else { String::new() };
            println!("{servers} servers took {writes} writes{over}");
        }
    }
}

fn counted(writes: &[(&Request, Account)]) -> usize {
    writes.iter().filter(|(_, account)| matches!(account, Account::Counted(_))).count()
}

fn account(request: &Request, servers: &BTreeSet<String>) -> Account {
    let writer = request.writer();
    let is_ours = matches!(writer, Writer::Operator | Writer::Agent);
    let apart = |server: &str, what: String| {
        if servers.contains(server) { Account::Apart(server.to_owned(), what) } else { Account::Foreign }
    };
    match request.resource() {
        "pods" | "gameservers" if !servers.contains(request.name()) => Account::Foreign,
        "pods" | "gameservers" if request.is_count_of_players() => {
            apart(request.name(), "player_counts".to_owned())
        }
        "pods" | "gameservers" if is_ours => Account::Counted(request.name().to_owned()),
        "pods" | "gameservers" => apart(request.name(), writer.to_string()),
        // An event is named after its object, with a dot behind that.
        "events" => {
            let what = if is_ours { "events".to_owned() } else { writer.to_string() };
            apart(request.name().split('.').next().unwrap_or_default(), what)
        }
        "leases" => Account::Foreign,
        _ if !is_ours => Account::Foreign,
        "gameservergroups" => Account::Shared("group_status".to_owned()),
        "tokenreviews" | "subjectaccessreviews" => Account::Shared("access_reviews".to_owned()),
        other => Account::Shared(format!("{writer}_{other}")),
    }
}
