//! A Redis Cluster of the test's own.

use std::{
    collections::HashMap,
    iter, thread,
    time::{Duration, SystemTime},
};

use redis::{FromRedisValue, RedisResult, Value};

use crate::{Authority, Pair, RedisServer, free_port};

/// How long a cluster may take to agree on something.
const PATIENCE: Duration = Duration::from_secs(30);

/// The node that is asked may be frozen; then another one is.
const ANSWER: Duration = Duration::from_millis(500);

/// How many slots there are.
const SLOTS: u16 = 16_384;

/// Three primaries, each with a replica: nodes 0 to 2 and 3 to 5 at the start. All end with the value.
///
/// A primary that is silent for two seconds is replaced by its replica; meanwhile the others go on to serve
/// their slots (`cluster-require-full-coverage no`).
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
    args: Vec<String>,
    /// Whether each node takes TLS on another port.
    tls: bool,
}

impl Cluster {
    /// Starts one with default settings.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one whose nodes have further command-line arguments.
    ///
    /// # Panics
    ///
    /// If the nodes do not start, or do not agree within half a minute.
    #[must_use]
    pub fn start_with(args: &[&str]) -> Self {
        let args = args.iter().copied().map(String::from).collect();
        Self::launch(args, false)
    }

    /// Starts one whose nodes show this certificate, to clients and to each other.
    ///
    /// # Panics
    ///
    /// If the nodes do not start, or do not agree within half a minute.
    #[must_use]
    pub fn start_behind_tls(pair: &Pair, authority: &Authority) -> Self {
        let mut args = pair.args(authority);
        args.extend(["--tls-cluster", "yes", "--tls-replication", "yes"].map(String::from));
        Self::launch(args, true)
    }

    fn launch(args: Vec<String>, tls: bool) -> Self {
        let mut cluster = Self {
            nodes: Vec::new(),
            args,
            tls,
        };
        cluster.nodes = iter::repeat_with(|| cluster.spawn()).take(6).collect();
        for (node, slots) in [(0, [0, 5_460]), (1, [5_461, 10_922]), (2, [10_923, 16_383])] {
            let [first, last] = slots.map(|slot| slot.to_string());
            cluster.run(node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for node in 0..6 {
            let epoch = (node + 1).to_string();
            cluster.run(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            cluster.meet(node);
        }
        for replica in 3..6 {
            cluster.replicate(replica, replica - 3);
        }
        cluster.wait();
        cluster
    }

    fn spawn(&self) -> RedisServer {
        let bus = free_port().to_string();
        let cluster = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        let port = free_port().to_string();
        let tls = ["--tls-port", &port];
        let tls = if self.tls { &tls[..] } else { &[] };
        // A replica stands for election however long ago it heard of its primary, and is in step at once.
        let rest = "--cluster-node-timeout 2000 --cluster-require-full-coverage no \
                    --cluster-replica-validity-factor 0 --repl-diskless-sync-delay 0 \
                    --repl-ping-replica-period 1";
        let args = self.args.iter().map(String::as_str);
        let args: Vec<_> = cluster
            .into_iter()
            .chain(rest.split_whitespace())
            .chain(tls.iter().copied())
            .chain(args)
            .collect();
        RedisServer::start_with(&args)
    }

    /// Makes node 0 and another one know each other.
    fn meet(&self, node: usize) {
        let port = self.port(node).to_string();
        let bus = self.setting(node, "cluster-port");
        self.run(0, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
    }

    fn setting(&self, node: usize, name: &str) -> String {
        let settings: HashMap<String, String> = self.query(node, &["CONFIG", "GET", name]);
        settings[name].clone()
    }

    /// Makes one node a replica of another, once it knows it.
    fn replicate(&self, replica: usize, primary: usize) {
        let id = self.id(primary);
        let command = ["CLUSTER", "REPLICATE", &id];
        until("the nodes know each other", || {
            self.try_query::<Value>(replica, &command).is_ok()
        });
    }

    /// `redis-cluster://127.0.0.1:<port>,…` with all nodes, or `rediss-cluster://…` behind TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.tls { "rediss" } else { "redis" };
        format!("{scheme}-cluster://{}", self.addresses())
    }

    /// The port that a node takes the store on.
    fn port(&self, node: usize) -> u16 {
        if self.tls {
            self.setting(node, "tls-port").parse().expect("a number")
        } else {
            self.nodes[node].port()
        }
    }

    /// `127.0.0.1:<port>,…` of all nodes.
    #[must_use]
    pub fn addresses(&self) -> String {
        let hosts = (0..self.len()).map(|node| format!("127.0.0.1:{}", self.port(node)));
        hosts.collect::<Vec<_>>().join(",")
    }

    /// A node, to be asked or frozen. Nodes are numbered as they were started, whatever they have become.
    #[must_use]
    pub fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node]
    }

    /// A node, to be killed or restarted.
    #[must_use]
    pub fn node_mut(&mut self, node: usize) -> &mut RedisServer {
        &mut self.nodes[node]
    }

    /// All nodes, by number.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// How many nodes were started.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: there are nodes from the start.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The slot of a key.
    ///
    /// # Panics
    ///
    /// If no node answers.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        let mut answers = (0..self.len())
            .filter_map(|node| self.try_query(node, &["CLUSTER", "KEYSLOT", key]).ok());
        answers.next().expect("a node that answers")
    }

    /// The primary of a slot, as most nodes that answer see it.
    ///
    /// # Panics
    ///
    /// If none knows one.
    #[must_use]
    pub fn owner(&self, slot: u16) -> usize {
        let mut votes = vec![0; self.len()];
        for node in 0..self.len() {
            if let Some(owner) = self.view(node).and_then(|view| view[usize::from(slot)]) {
                votes[owner] += 1;
            }
        }
        let most = (0..self.len()).max_by_key(|&node| votes[node]);
        most.filter(|&node| votes[node] > 0)
            .expect("a primary for the slot")
    }

    /// The primary of a key.
    #[must_use]
    pub fn owner_of(&self, key: &str) -> usize {
        self.owner(self.slot(key))
    }

    /// A replica of a primary, as it sees them itself.
    ///
    /// # Panics
    ///
    /// If it has none that is connected.
    #[must_use]
    pub fn replica_of(&self, primary: usize) -> usize {
        let role: (String, u64, Vec<(String, String, String)>) = self.query(primary, &["ROLE"]);
        let port = &role.2.first().expect("a replica").1;
        let replica = self
            .nodes
            .iter()
            .position(|node| node.port().to_string() == *port);
        replica.expect("a node of this cluster")
    }

    /// Makes a replica take over from its primary in good order, and waits until all agree.
    pub fn fail_over(&self, replica: usize) {
        self.run(replica, &["CLUSTER", "FAILOVER"]);
        until("the replica is a primary", || self.is_primary(replica));
        self.wait();
    }

    /// Whether a node answers and is a primary.
    #[must_use]
    pub fn is_primary(&self, node: usize) -> bool {
        let role: RedisResult<Vec<Value>> = self.try_query(node, &["ROLE"]);
        role.is_ok_and(
            |role| matches!(role.first(), Some(Value::BulkString(name)) if name == b"master"),
        )
    }

    /// Starts one more primary, without any slots, and gives back its number.
    pub fn add_node(&mut self) -> usize {
        let node = self.spawn();
        self.nodes.push(node);
        let number = self.len() - 1;
        self.meet(number);
        self.wait();
        number
    }

    /// Moves a slot with all that is in it to another primary.
    pub fn move_slot(&self, slot: u16, to: usize) {
        let from = self.begin_move(slot, to);
        self.finish_move(slot, from, to);
    }

    /// Begins to move a slot and leaves it half-way: keys that are there stay, new ones belong to the
    /// target. Gives back where it comes from.
    #[must_use = "the move ends where it began"]
    pub fn begin_move(&self, slot: u16, to: usize) -> usize {
        let from = self.owner(slot);
        let (slot, source, target) = (slot.to_string(), self.id(from), self.id(to));
        self.run(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source]);
        self.run(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target]);
        from
    }

    /// Moves the keys of a slot after [`begin_move`](Self::begin_move), and gives it to its new primary.
    pub fn finish_move(&self, slot: u16, from: usize, to: usize) {
        let number = slot.to_string();
        let port = self.nodes[to].port().to_string();
        loop {
            let keys = ["CLUSTER", "GETKEYSINSLOT", &number, "100"];
            let keys: Vec<String> = self.query(from, &keys);
            if keys.is_empty() {
                break;
            }
            let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            let keys = keys.iter().map(String::as_str);
            let command: Vec<_> = migrate.into_iter().chain(keys).collect();
            self.run(from, &command);
        }
        let id = self.id(to);
        // The target first: it then tells the others.
        for node in [to, from] {
            self.run(node, &["CLUSTER", "SETSLOT", &number, "NODE", &id]);
        }
    }

    /// Makes a node forget all scripts.
    pub fn flush_scripts(&self, node: usize) {
        self.run(node, &["SCRIPT", "FLUSH"]);
    }

    /// Waits until all nodes that answer see each slot served, by the same primaries.
    pub fn wait(&self) {
        until("the cluster agrees", || self.agrees());
    }

    fn agrees(&self) -> bool {
        let mut common: Option<Vec<_>> = None;
        for node in 0..self.len() {
            let Ok(info) = self.try_query::<String>(node, &["CLUSTER", "INFO"]) else {
                continue;
            };
            let known = format!("cluster_known_nodes:{}\r\n", self.len());
            if !info.contains("cluster_state:ok") || !info.contains(&known) {
                return false;
            }
            if !self.is_primary(node) && !self.is_in_step(node) {
                return false;
            }
            let Some(view) = self.view(node) else {
                return false;
            };
            if view.contains(&None) || common.as_ref().is_some_and(|common| *common != view) {
                return false;
            }
            common = Some(view);
        }
        let Some(view) = common else {
            return false;
        };
        let mut owners: Vec<_> = view.into_iter().flatten().collect();
        owners.sort_unstable();
        owners.dedup();
        // Those who are said to serve do so.
        owners.into_iter().all(|owner| self.is_primary(owner))
    }

    fn is_in_step(&self, replica: usize) -> bool {
        let info = self.try_query::<String>(replica, &["INFO", "replication"]);
        info.is_ok_and(|info| info.contains("master_link_status:up"))
    }

    /// The primary of each slot as one node sees it; `None` if it does not answer.
    fn view(&self, node: usize) -> Option<Vec<Option<usize>>> {
        let rows: Vec<Vec<Value>> = self.try_query(node, &["CLUSTER", "SLOTS"]).ok()?;
        let mut view = vec![None; usize::from(SLOTS)];
        for row in rows {
            let number = |value: &Value| usize::from_redis_value_ref(value).ok();
            let [first, last, primary, ..] = row.as_slice() else {
                return None;
            };
            let primary = Vec::<Value>::from_redis_value_ref(primary).ok()?;
            let port = number(primary.get(1)?)?;
            let owner = self
                .nodes
                .iter()
                .position(|node| usize::from(node.port()) == port);
            view[number(first)?..=number(last)?].fill(owner);
        }
        Some(view)
    }

    fn id(&self, node: usize) -> String {
        self.query(node, &["CLUSTER", "MYID"])
    }

    /// Runs a command on one node.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn run(&self, node: usize, command: &[&str]) {
        let _: Value = self.query(node, command);
    }

    fn query<T: FromRedisValue>(&self, node: usize, command: &[&str]) -> T {
        let answer = self.try_query(node, command);
        answer.unwrap_or_else(|error| panic!("{command:?} on node {node}: {error}"))
    }

    fn try_query<T: FromRedisValue>(&self, node: usize, command: &[&str]) -> RedisResult<T> {
        let client = redis::Client::open(self.nodes[node].url())?;
        // A frozen server accepts the connection, and then says nothing.
        let mut connection = client.get_connection_with_timeout(ANSWER)?;
        connection.set_read_timeout(Some(10 * ANSWER))?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
    }
}

/// Waits for something that takes its time.
///
/// # Panics
///
/// If it does not come within half a minute.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = SystemTime::now();
    while !done() {
        let waited = start.elapsed().unwrap_or_default();
        assert!(waited < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_moves_and_a_replica_takes_over() {
        let cluster = Cluster::start();
        let (slot, from) = (cluster.slot("{a}"), cluster.owner_of("{a}"));
        let to = (from + 1) % 3;
        cluster.run(from, &["SET", "{a}", "1"]);
        cluster.move_slot(slot, to);
        cluster.wait();
        assert_eq!(cluster.owner(slot), to);
        assert_eq!(cluster.query::<String>(to, &["GET", "{a}"]), "1");
        let replica = cluster.replica_of(to);
        cluster.fail_over(replica);
        assert_eq!(cluster.owner(slot), replica);
    }
}
