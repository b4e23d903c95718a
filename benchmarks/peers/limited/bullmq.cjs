// BullMQ with the limiter of its workers: `send <jobs>`, or `work` until it is ended.
'use strict';
const fs = require('node:fs');
const { Queue, Worker } = require('bullmq');

const url = new URL(process.env.QWORKER_BENCH_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const pad = 'x'.repeat(56);

async function send(jobs) {
  const queue = new Queue('bench', { connection });
  for (let first = 0; first < jobs; first += 500) {
    const some = [];
    for (let number = first; number < Math.min(first + 500, jobs); number++) {
      some.push({ name: 'mark', data: { number, pad }, opts: { removeOnComplete: true } });
    }
    await queue.addBulk(some);
  }
  await queue.close();
}

function work() {
  const marks = fs.openSync(process.env.QWORKER_BENCH_MARKS, 'r+');
  const limiter = { max: Number(process.env.QWORKER_BENCH_RATE), duration: 1000 };
  const started = Buffer.alloc(8);
  new Worker('bench', async (job) => {
    started.writeDoubleLE(Number(process.hrtime.bigint()) / 1e9);
    fs.writeSync(marks, started, 0, 8, job.data.number * 8);
  }, { connection, concurrency: 8, limiter });
}

if (process.argv[2] === 'send') send(Number(process.argv[3])); else work();
